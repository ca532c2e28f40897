-- Remove an entry from the stream that cannot be read as a group.
-- Invariant: if the entry names a task, the task is returned at the same moment. If it names none, the task is
-- lost, and the audit says so.
-- KEYS groups blobs bytes returned
-- ARGV id
-- Reply 1, or 0 if the entry is gone already
local entry = redis.call('XRANGE', groups, id, id)[1]
if not entry then return 0 end
local task = task_of(entry)
remove_group(groups, blobs, bytes, id, task)
return_task(returned, task)
return 1
