-- How a task is written, returned, and ended. A task is the text 'position:epoch:rows:index'; everywhere else
-- its position names it.

-- The position of a task.
local function position_of(task)
  return string.match(task, '^(%d+):')
end

-- Whether a text is a task: another program, or a damaged file, may have left anything in Redis.
local function is_task(text)
  return text and string.match(text, '^%d+:%d+:%d+:%d+$') ~= nil
end

-- Make a task the next to lease. Returned tasks are leased again in the run's order, lowest position first;
-- the sorted set keeps each task once. Other texts are ignored.
local function return_task(returned, task)
  if is_task(task) then redis.call('ZADD', returned, position_of(task), task) end
end

-- Count one more failure of a task for a cause. Returns the failures for that cause so far.
local function count_failure(tries, task, cause)
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

-- Return a task that has failed, or drop it for `reason` when it has failed `limit` times for `cause`.
-- Returns the number of tasks that were dropped, 0 or 1.
local function return_or_drop(returned, tries, ledger, task, cause, limit, reason, detail)
  if count_failure(tries, task, cause) >= limit then
    drop_task(ledger, tries, task, reason, detail)
    return 1
  end
  return_task(returned, task)
  return 0
end

-- Update a row's running pass rate when a sampled task of the row ends: the mean of the old rate and of
-- `passed`, the share of the task's samples that were correct. Does nothing without a row.
local function note_passed(pass_rates, row, passed)
  if not row or row == '' then return end
  local before = tonumber(redis.call('HGET', pass_rates, row) or passed)
  redis.call('HSET', pass_rates, row, string.format('%.6g', (before + tonumber(passed)) / 2))
end
