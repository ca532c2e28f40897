-- Take an entry that is no group out of the stream: nobody can train it, and none can plan it.
-- Invariant: if it names a task, that is returned at the moment at which the entry goes; a task that
-- it does not name is lost, and the audit says so.
-- KEYS groups blobs bytes returned   ARGV entry   Reply 1, or 0 where it is gone already
local groups, blobs, bytes, returned = unpack(KEYS)
local entry = redis.call('XRANGE', groups, ARGV[1], ARGV[1])[1]
if not entry then return 0 end
local task = task_of(entry)
remove_group(groups, blobs, bytes, ARGV[1], task)
return_task(returned, task)
return 1
