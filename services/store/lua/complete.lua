-- Turn a held attempt into a group in the stream.
-- Invariant: only the attempt that holds a task completes it, once; a lapsed attempt returns its
-- task, and its group is discarded. Never refused for space: the lease reserved it.
-- `last_finished` is the cursor at the newest completion: no task leased since has been of use yet
-- (see lease). `finished` counts the groups of a batch, `filtered` those without a signal meanwhile
-- (see filter_group).
-- KEYS attempts held groups blobs bytes returned order
-- ARGV attempt min_version lineage blob lengths
-- Reply 1 accepted, 0 discarded
local attempts, held, groups, blobs, bytes, returned, order = unpack(KEYS)
local deadline = redis.call('ZSCORE', attempts, ARGV[1])
if not deadline then return 0 end
local task = end_attempt(attempts, held, ARGV[1])
if tonumber(deadline) <= now_ms() then
  put_back(returned, task)
  return 0
end
redis.call('HSET', blobs, position_of(task), ARGV[4])
redis.call('INCRBY', bytes, #ARGV[4])
redis.call('XADD', groups, '*', 'task', task, 'min_version', ARGV[2], 'lineage', ARGV[3], 'bytes', #ARGV[4],
  'lengths', ARGV[5])
local o = redis.call('HMGET', order, 'position', 'batch')
redis.call('HSET', order, 'last_finished', o[1])
if redis.call('HINCRBY', order, 'finished', 1) >= tonumber(o[2]) then
  redis.call('HSET', order, 'finished', 0, 'filtered', 0)
end
return 1
