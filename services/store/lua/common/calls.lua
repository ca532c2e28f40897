-- Calls of agents' sessions. `calls` is a hash: each call, and the worker that has it. `due` is a sorted set:
-- when a call may be claimed next. `asked` and `ended` are streams. They only wake waiting readers; correctness
-- does not depend on them.

-- Ask for an answer to a call. `worker` may claim it before others; '' if any worker may.
local function add_call(calls, due, asked, id, call, worker)
  redis.call('HSET', calls, id, call, id .. ':worker', worker or '')
  redis.call('ZADD', due, now_ms(), id)
  redis.call('XADD', asked, 'MAXLEN', '~', 1000, '*', 'call', id, 'worker', worker or '')
end

-- Parse a worker's entry of `calls_load`: the calls that it holds, how many it can work on at once, and the
-- time of the entry. Returns nil for an entry that is older than 3 s.
local function load_of(text)
  local held, at_once, at = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if held and now_ms() - tonumber(at) <= 3000 then return tonumber(held), tonumber(at_once), at end
end

-- Forget a call.
local function end_call(calls, due, ended, id)
  redis.call('HDEL', calls, id, id .. ':worker')
  redis.call('ZREM', due, id)
  redis.call('XADD', ended, 'MAXLEN', '~', 1000, '*', 'call', id)
end

-- Forget the calls that a session waits for, because the session has ended. Their turns are not recorded.
local function end_busy_calls(sessions, calls, due, ended, attempt, index)
  for digest in pairs(words(redis.call('HGET', sessions, 'busy:' .. index))) do
    end_call(calls, due, ended, attempt .. '/' .. index .. '/' .. digest)
  end
  redis.call('HDEL', sessions, 'busy:' .. index)
end
