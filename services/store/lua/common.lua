-- Shared by every script: Redis' own clock, so that hosts need not agree on the time.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A learner that was replaced while it slept holds an old fencing token and may change nothing.
local function fenced(run_key, token)
  return redis.call('HGET', run_key, 'fencing_token') ~= token
end

-- At its `maxmemory` Redis refuses a script's first write if that may grow, and no later one. For
-- scripts that hardly grow and must work then, too: PERSIST is a write that changes nothing.
local function also_when_full(key)
  redis.call('PERSIST', key)
end

local function final(state)
  return state == 'succeeded' or state == 'failed' or state == 'cancelled'
end

-- Tasks travel as 'position:epoch:rows:index'; the position names the task everywhere else.
local function position_of(task)
  return string.match(task, '^(%d+):')
end

-- Whether this is a task: another program, or a damaged file, may have left anything.
local function is_task(text)
  return text and string.match(text, '^%d+:%d+:%d+:%d+$') ~= nil
end

-- The task of an entry of the stream of groups; nil where it names none.
local function task_of(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'task' and is_task(entry[2][i + 1]) then return entry[2][i + 1] end
  end
  return nil
end

-- Returned tasks are leased again in the run's order, lowest position first; a set has each once.
local function return_task(returned, task)
  if is_task(task) then redis.call('ZADD', returned, position_of(task), task) end
end

-- End an attempt. Its task, or nil where it was not held.
local function end_attempt(attempts, held, attempt)
  if redis.call('ZREM', attempts, attempt) == 0 then return nil end
  local task = string.match(redis.call('HGET', held, attempt) or '', '^(%S+)')
  redis.call('HDEL', held, attempt)
  return task
end

-- How often a task has failed for this cause, this time included.
local function failed_again(tries, task, cause)
  local position = position_of(task)
  local counts = cjson.decode(redis.call('HGET', tries, position) or '{}')
  counts[cause] = (counts[cause] or 0) + 1
  redis.call('HSET', tries, position, cjson.encode(counts))
  return counts[cause]
end

-- End a task without training it.
local function drop_task(ledger, tries, task, reason, detail)
  redis.call('HDEL', tries, position_of(task))
  redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', reason, 'detail', detail,
    'tasks', cjson.encode({task}))
end

-- A task that has failed goes back, or ends for `reason` where that was so `limit` times for `cause`. Returns
-- how many tasks ended.
local function return_or_drop(returned, tries, ledger, task, cause, limit, reason, detail)
  if failed_again(tries, task, cause) >= limit then
    drop_task(ledger, tries, task, reason, detail)
    return 1
  end
  return_task(returned, task)
  return 0
end

-- Note the share of a row's samples that were correct, when a task of it ends that was sampled. A row's
-- running pass rate is the mean of this share and of what the rate was before.
local function note_passed(pass_rates, row, passed)
  if not row or row == '' then return end
  local before = tonumber(redis.call('HGET', pass_rates, row) or passed)
  redis.call('HSET', pass_rates, row, string.format('%.6g', (before + tonumber(passed)) / 2))
end

-- Take a group out of the stream, with its payload and its bytes.
local function remove_group(groups, blobs, bytes, entry, task)
  redis.call('XACK', groups, 'learner', entry)
  redis.call('XDEL', groups, entry)
  if not is_task(task) then return end
  local position = position_of(task)
  redis.call('DECRBY', bytes, redis.call('HSTRLEN', blobs, position))
  redis.call('HDEL', blobs, position)
end

-- Groups in the stream that no plan has.
local function unplanned(groups, plans, batch)
  return redis.call('XLEN', groups) - redis.call('HLEN', plans) * batch
end

-- Whether a finished group goes into the stream now, or waits in its worker, which holds the lease.
-- It waits while the run has filled its bytes, except where the learner needs it: to make the batch
-- whole that it waits for, or because no later batch may train tokens of this version.
local function has_room(run, groups, bytes, plans, size, version, lineage)
  local r = redis.call('HMGET', run, 'stream_bytes', 'batch', 'max_staleness', 'version', 'lineage')
  if not r[1] or tonumber(redis.call('GET', bytes) or '0') + size <= tonumber(r[1]) then return true end
  local batch, newest = tonumber(r[2]), tonumber(r[4] or '0')
  local training = redis.call('HEXISTS', plans, newest + 1) == 1
  return (not training and unplanned(groups, plans, batch) < batch)
    or r[5] ~= lineage or version + tonumber(r[3]) <= newest
end

-- Whether session `index` of an attempt, which has a key, may go on; if so, the attempt's lease is renewed. Reply
-- '', or why not: 'gone' (nothing is known of it, or not any more), 'lapsed', or what ended the group (its field
-- `state`).
local function sessions_go_on(sessions, attempts, attempt, index)
  local s = redis.call('HMGET', sessions, 'idle', 'state', 'kept', 'key:' .. index)
  if not s[1] or not s[4] then return 'gone' end
  -- A group that has ended may lapse until it is handed in; a live session that has ended is not held.
  if s[2] and (s[2] ~= 'ended' or s[3]) then return s[2] end
  local deadline, now = redis.call('ZSCORE', attempts, attempt), now_ms()
  if not deadline or tonumber(deadline) <= now then return 'lapsed' end
  if s[2] then return s[2] end
  redis.call('ZADD', attempts, 'XX', now + tonumber(s[1]), attempt)
  -- Kept for an hour longer, so that late calls learn what became of it.
  redis.call('PEXPIRE', sessions, tonumber(s[1]) + tonumber(s[3] or 3600000))
  return ''
end

-- The words of a text, as a set.
local function words(text)
  local found = {}
  for word in string.gmatch(text or '', '%S+') do found[word] = true end
  return found
end

-- Have a worker take a call: `worker` may take it before others; '' if any may. Only readers that wait are
-- told by a log; none depends on it.
local function add_call(calls, due, asked, id, call, worker)
  redis.call('HSET', calls, id, call, id .. ':worker', worker or '')
  redis.call('ZADD', due, now_ms(), id)
  redis.call('XADD', asked, 'MAXLEN', '~', 1000, '*', 'call', id, 'worker', worker or '')
end

-- Of a worker in `calls_load`, if it has asked for calls within 3 s: the calls that it holds, how many it can
-- work on at once, and when it asked.
local function load_of(text)
  local held, at_once, at = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if held and now_ms() - tonumber(at) <= 3000 then return tonumber(held), tonumber(at_once), at end
end

-- A call has come to its end.
local function end_call(calls, due, ended, id)
  redis.call('HDEL', calls, id, id .. ':worker')
  redis.call('ZREM', due, id)
  redis.call('XADD', ended, 'MAXLEN', '~', 1000, '*', 'call', id)
end

-- A session has ended: its turns in work are not recorded.
local function end_busy_calls(sessions, calls, due, ended, attempt, index)
  for digest in pairs(words(redis.call('HGET', sessions, 'busy:' .. index))) do
    end_call(calls, due, ended, attempt .. '/' .. index .. '/' .. digest)
  end
  redis.call('HDEL', sessions, 'busy:' .. index)
end

-- The name of the sessions that an attempt hands in. A live session is leased as `SESSION.TOKEN`: no two of its
-- leases have one name, so whoever held an earlier one cannot touch a later one. Any other attempt has sessions
-- of its own name, or none.
local function session_of(attempt)
  return string.match(attempt, '^[^.]*')
end

local TURNS = {turn = true, history = true, parents = true, lengths = true, failed = true, worker = true}

-- Forget the turns of sessions whose attempt has ended, and remember why for an hour. Invariant: they come to one
-- end, the first: whoever is late changes nothing. O(turns).
local function close_sessions(sessions, state)
  local s = redis.call('HMGET', sessions, 'idle', 'state', 'reward_ms')
  if not s[1] or s[2] and s[2] ~= 'ended' then return end
  redis.call('HSET', sessions, 'state', state)
  for _, name in ipairs(redis.call('HKEYS', sessions)) do
    if name == 'own' or TURNS[string.match(name, '^(%a+):')] then redis.call('HDEL', sessions, name) end
  end
  -- A live one is kept for a week until then.
  if s[3] then redis.call('EXPIRE', sessions, 3600) end
end

-- The task of an attempt has ended, and so have its sessions, if it has any; a live one is ready no more.
local function end_sessions(ready, sessions, attempt, state)
  redis.call('ZREM', ready, session_of(attempt))
  close_sessions(sessions, state)
end

-- Put a live session that has ended, at `ended`, where it belongs: with a usable reward and a turn to those that
-- can be leased; without a reward to those that wait for one. Of any other one only its end is kept for an hour,
-- and it counts as discarded.
-- Invariant: a live session is in exactly one of: open, waiting, ready; or it is over.
local function place_ended_session(session, open, waiting, ready, order, id, ended)
  local s = redis.call('HMGET', session, 'usable', 'turns:0', 'reward_ms', 'idle', 'key:0', 'reward:0')
  redis.call('ZREM', open, id)
  redis.call('ZREM', waiting, id)
  local deadline = ended + tonumber(s[3] or '0')
  if s[2] and (s[1] == '1' or not s[1] and deadline > now_ms()) then
    redis.call('HSET', session, 'state', 'ended', 'ended', ended)
    redis.call('ZADD', s[1] and ready or waiting, s[1] and now_ms() or deadline, id)
    -- A week: its run may be paused.
    if s[1] then redis.call('EXPIRE', session, 604800) end
    return
  end
  redis.call('HINCRBY', order, 'sessions_discarded', 1)
  redis.call('DEL', session)
  if not s[4] then return end
  redis.call('HSET', session, 'state', 'unrewarded', 'idle', s[4], 'key:0', s[5])
  if s[6] then redis.call('HSET', session, 'reward:0', s[6]) end
  redis.call('EXPIRE', session, 3600)
end

-- Open the evaluation that has waited longest, unless one is open: all its rows, or those that are left.
local function open_evaluation(evaluation, queue, requests, returned)
  if redis.call('EXISTS', evaluation) == 1 then return end
  local id = redis.call('LPOP', queue)
  if not id then return end
  local request = cjson.decode(redis.call('HGET', requests, id))
  local rows, next_row, answered = request.set.rows, 0, 0
  if type(request.left) == 'table' then
    for _, row in ipairs(request.left) do redis.call('RPUSH', returned, row) end
    next_row, answered = rows, rows - #request.left
  end
  redis.call('HSET', evaluation, 'id', id, 'version', request.version, 'rows', rows, 'next', next_row,
    'answered', answered, 'opened', now_ms())
end

-- End the open evaluation, and open the next. Its answers and its request stay until it is closed.
-- KEYS of the caller begin with: evaluation queue requests ended returned attempts held
local function end_evaluation(keys, id, state, reason)
  local answered = redis.call('HGET', keys[1], 'answered')
  redis.call('HSET', keys[4], id, cjson.encode({state = state, reason = reason, answered = tonumber(answered)}))
  redis.call('DEL', keys[1], keys[5], keys[6], keys[7])
  open_evaluation(keys[1], keys[2], keys[3], keys[5])
end
