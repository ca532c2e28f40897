-- Partials: what a released attempt had sampled of its group (set_aside.lua). The next attempt at the task continues
-- it. `partials` is a hash: by a task's position the payload, or the reference to its file; as 'POSITION:oldest' the
-- version of its oldest token. The payloads count in `bytes`. A partial goes when its task ends, or is stale.

-- Delete the partial of a task, if there is one.
local function forget_partial(partials, bytes, task)
  local position = position_of(task)
  local size = redis.call('HSTRLEN', partials, position)
  if size == 0 then return end
  redis.call('HDEL', partials, position, position .. ':oldest')
  redis.call('DECRBY', bytes, size)
end

-- Append a mark to each task of `reply` ({'', attempt, task, attempt, task, …}) that has a partial.
local function mark_partials(reply, partials)
  if redis.call('EXISTS', partials) == 0 then return reply end
  for i = 3, #reply, 2 do
    if redis.call('HEXISTS', partials, position_of(reply[i])) == 1 then reply[i] = reply[i] .. ' continued' end
  end
  return reply
end
