-- The stream of groups, and the space that it may take in Redis.

-- The fields of an entry of a stream, by name.
local function entry_fields(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  return fields
end

-- The task of an entry of the stream of groups, or nil if the entry names no task.
local function task_of(entry)
  local task = entry_fields(entry).task
  return is_task(task) and task or nil
end

-- Remove a group from the stream, with its payload and its bytes.
local function remove_group(groups, blobs, bytes, entry, task)
  redis.call('XACK', groups, 'learner', entry)
  redis.call('XDEL', groups, entry)
  if not is_task(task) then return end
  local position = position_of(task)
  redis.call('DECRBY', bytes, redis.call('HSTRLEN', blobs, position))
  redis.call('HDEL', blobs, position)
end

-- The number of groups in the stream that are in no plan.
local function unplanned(groups, plans, batch)
  return redis.call('XLEN', groups) - redis.call('HLEN', plans) * batch
end

-- Whether the stream takes a finished group of `size` bytes now; if not, the group waits in its worker, which
-- keeps the lease. The stream takes a group that stays within the run's `stream_bytes`, and any group that the
-- learner needs: to complete the batch that it waits for, or because no later batch may train this version.
local function stream_takes(run, groups, bytes, plans, size, version, lineage)
  local r = hash_fields(run, 'stream_bytes', 'batch', 'max_staleness', 'version', 'lineage')
  local after = tonumber(redis.call('GET', bytes) or '0') + size
  if not r.stream_bytes or after <= tonumber(r.stream_bytes) then return true end
  local batch, newest = tonumber(r.batch), tonumber(r.version or '0')
  local training = redis.call('HEXISTS', plans, newest + 1) == 1
  return (not training and unplanned(groups, plans, batch) < batch)
    or r.lineage ~= lineage or version + tonumber(r.max_staleness) <= newest
end
