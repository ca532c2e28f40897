-- The lease protocol, for tasks (lease.lua) and for rows of an evaluation (evaluation_lease.lua) alike.
-- `attempts` is a sorted set: each attempt's deadline. `held` is a hash: each attempt's record, whose first word is
-- the task or the row. Invariant: an attempt is in both or in neither.
-- A lease ends in end_attempt: when its worker completes, releases or drops it, or, once it has lapsed, when
-- any worker asks for leases (end_lapsed).

-- Start an attempt.
local function grant(attempts, held, attempt, deadline, record)
  redis.call('ZADD', attempts, deadline, attempt)
  redis.call('HSET', held, attempt, record)
end

-- End an attempt. Returns its task or row, or nil if the attempt was not held.
local function end_attempt(attempts, held, attempt)
  if redis.call('ZREM', attempts, attempt) == 0 then return nil end
  local item = string.match(redis.call('HGET', held, attempt) or '', '^(%S+)')
  redis.call('HDEL', held, attempt)
  return item
end

-- Bound all deadlines after Redis' clock was set back: a lease then lasts at most a minute too long.
local function bound_deadlines(deadlines, now, ttl)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', deadlines, now + ttl + 60001, '+inf')) do
    redis.call('ZADD', deadlines, now + ttl, member)
  end
end

-- End the attempts that have lapsed. Returns their tasks or rows. O(lapsed).
local function end_lapsed(attempts, held, now, ttl)
  bound_deadlines(attempts, now, ttl)
  local items = {}
  for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, '-inf', now)) do
    items[#items + 1] = end_attempt(attempts, held, attempt)
  end
  return items
end

-- Append attempt, item, attempt, item, … of the attempts with these names that are held. Returns whether there
-- are any: then the call is a repetition whose reply was lost, and gets the same answer.
local function append_granted(reply, held, names)
  local length = #reply
  for _, attempt in ipairs(names) do
    local record = redis.call('HGET', held, attempt)
    if not record then break end
    reply[#reply + 1] = attempt
    reply[#reply + 1] = string.match(record, '^(%S+)')
  end
  return #reply > length
end
