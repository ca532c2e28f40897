-- Note what a live session has earned; one that has ended can be leased from then on.
-- Invariants: the first reward counts; after the deadline none does. Otherwise as of place_ended_session.
-- KEYS session open waiting ready order   ARGV id reward usable (1, or 0 for one that says why there is none)
-- Reply {'', the reward that counts}, or {why not}: 'gone', 'unrewarded', 'lapsed' (its run has ended)
local session, open, waiting, ready, order = unpack(KEYS)
local s = redis.call('HMGET', session, 'idle', 'state', 'reward:0', 'reward_ms', 'ended')
if s[3] then return {'', s[3]} end
if not s[1] then return {'gone'} end
local idle_at, now = redis.call('ZSCORE', open, ARGV[1]), now_ms()
if not idle_at and not redis.call('ZSCORE', waiting, ARGV[1]) then
  return {s[2] and s[2] ~= 'ended' and s[2] or 'lapsed'}
end
-- One without a call for so long has ended by itself (see live_sweep).
local ended = tonumber(s[5] or idle_at)
if ended + tonumber(s[4]) > now then
  redis.call('HSET', session, 'reward:0', ARGV[2], 'usable', ARGV[3])
  if ended <= now then place_ended_session(session, open, waiting, ready, order, ARGV[1], ended) end
  return {'', ARGV[2]}
end
place_ended_session(session, open, waiting, ready, order, ARGV[1], ended)
return {'unrewarded'}
