-- Record the reward of a live session. A session that has ended can then be leased.
-- Invariants: the first reward counts. No reward counts after the deadline. place_ended_session (common/sessions.lua).
-- KEYS sessions sessions_open sessions_waiting sessions_ready order
-- ARGV id reward usable
--   usable: 1, or 0 if the reward is null, with a reason
-- Reply {'', the reward that counts}, or {why not}: 'gone', 'unrewarded', or 'lapsed' (its run has ended)
local s = hash_fields(sessions, 'idle', 'state', 'reward:0', 'reward_ms', 'ended')
if s['reward:0'] then return {'', s['reward:0']} end
if not s.idle then return {'gone'} end
local idle_at, now = redis.call('ZSCORE', sessions_open, id), now_ms()
if not idle_at and not redis.call('ZSCORE', sessions_waiting, id) then
  return {s.state and s.state ~= 'ended' and s.state or 'lapsed'}
end
-- A session without a call for its idle time has ended by itself (live_sweep.lua).
local ended = tonumber(s.ended or idle_at)
if ended + tonumber(s.reward_ms) > now then
  redis.call('HSET', sessions, 'reward:0', reward, 'usable', usable)
  if ended <= now then
    place_ended_session(sessions, sessions_open, sessions_waiting, sessions_ready, order, id, ended)
  end
  return {'', reward}
end
place_ended_session(sessions, sessions_open, sessions_waiting, sessions_ready, order, id, ended)
return {'unrewarded'}
