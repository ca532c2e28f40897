-- Sessions of agents, and live sessions. `sessions` is the hash of all sessions of one attempt; a live session
-- has a hash of its own, in which its index is 0.

-- The fields of session `index` with these names, which are kept as `NAME:index`, by name; false for a missing field.
local function session_fields(sessions, index, ...)
  local fields, names, keys = {}, {...}, {}
  for i, name in ipairs(names) do keys[i] = name .. ':' .. index end
  for i, value in ipairs(redis.call('HMGET', sessions, unpack(keys))) do fields[names[i]] = value end
  return fields
end

-- Check that session `index` of an attempt may go on, and renew the attempt's lease. Replies '', or why the
-- session may not go on: 'gone' (its key or the whole record is missing), 'lapsed', or the `state`
-- that ended the group. `deadlines` has the attempt's deadline.
local function sessions_go_on(sessions, deadlines, attempt, index)
  local s = hash_fields(sessions, 'idle', 'state', 'kept')
  if not s.idle or not session_fields(sessions, index, 'key').key then return 'gone' end
  -- A group that has ended may lapse until it is completed; a live session that has ended is not held.
  if s.state and (s.state ~= 'ended' or s.kept) then return s.state end
  local deadline, now = redis.call('ZSCORE', deadlines, attempt), now_ms()
  if not deadline or tonumber(deadline) <= now then return 'lapsed' end
  if s.state then return s.state end
  redis.call('ZADD', deadlines, 'XX', now + tonumber(s.idle), attempt)
  -- Kept for an hour longer, so that late calls learn why the session has ended.
  redis.call('PEXPIRE', sessions, tonumber(s.idle) + tonumber(s.kept or 3600000))
  return ''
end

-- The name of the sessions that an attempt completes. A live session is leased as `SESSION.TOKEN`: no two of its
-- leases have the same name, so the holder of an earlier lease cannot touch a later one. The sessions of any
-- other attempt have the attempt's name.
local function session_of(attempt)
  return string.match(attempt, '^[^.]*')
end

local TURNS = {turn = true, history = true, parents = true, lengths = true, failed = true, worker = true}

-- Forget the turns of sessions whose attempt has ended, and keep `state`, the reason, for an hour.
-- Invariant: the first reason stays. O(turns).
local function close_sessions(sessions, state)
  local s = hash_fields(sessions, 'idle', 'state', 'reward_ms')
  if not s.idle or s.state and s.state ~= 'ended' then return end
  redis.call('HSET', sessions, 'state', state)
  for _, name in ipairs(redis.call('HKEYS', sessions)) do
    if name == 'own' or TURNS[string.match(name, '^(%a+):')] then redis.call('HDEL', sessions, name) end
  end
  -- A live session is kept for a week until then.
  if s.reward_ms then redis.call('EXPIRE', sessions, 3600) end
end

-- Close the sessions of an attempt whose task has ended, if it has sessions. A live session leaves `ready`.
local function end_sessions(ready, sessions, attempt, state)
  redis.call('ZREM', ready, session_of(attempt))
  close_sessions(sessions, state)
end

-- Move a live session that has ended, at time `ended`, to its next place: to `ready` if it has a usable reward
-- and a turn, to `waiting` if it has no reward yet. Any other session is discarded: it is counted, and the reason
-- is kept for an hour.
-- Invariant: a live session is in exactly one of open, waiting and ready, or it is over.
local function place_ended_session(session, open, waiting, ready, order, id, ended)
  local s = hash_fields(session, 'usable', 'turns:0', 'reward_ms', 'idle', 'key:0', 'reward:0')
  redis.call('ZREM', open, id)
  redis.call('ZREM', waiting, id)
  local deadline = ended + tonumber(s.reward_ms or '0')
  if s['turns:0'] and (s.usable == '1' or not s.usable and deadline > now_ms()) then
    redis.call('HSET', session, 'state', 'ended', 'ended', ended)
    redis.call('ZADD', s.usable and ready or waiting, s.usable and now_ms() or deadline, id)
    -- A week: its run may be paused.
    if s.usable then redis.call('EXPIRE', session, 604800) end
    return
  end
  redis.call('HINCRBY', order, 'sessions_discarded', 1)
  redis.call('DEL', session)
  if not s.idle then return end
  redis.call('HSET', session, 'state', 'unrewarded', 'idle', s.idle, 'key:0', s['key:0'])
  if s['reward:0'] then redis.call('HSET', session, 'reward:0', s['reward:0']) end
  redis.call('EXPIRE', session, 3600)
end
