-- Remove groups from the stream that the learner will not train, because they are stale or cannot be read. Their
-- tasks are returned, or dropped when that has happened `limit` times for the same cause. The plan of `step`
-- (0: none) is removed too: its other groups can be planned again.
-- Invariants: fenced. A group leaves the stream together with its payload and its bytes, and its task is then in
-- exactly one of {returned, ledger}. No plan names a group that is gone.
-- KEYS run groups blobs bytes returned tries ledger plans
-- ARGV fencing_token limit cause reason detail step entries...
-- Reply -1 fenced, else the number of tasks that were dropped
if fenced(run, fencing_token) then return -1 end
local dropped = 0
for _, id in ipairs(entries) do
  local entry = redis.call('XRANGE', groups, id, id)[1]
  if entry then
    local task = task_of(entry)
    remove_group(groups, blobs, bytes, id, task)
    redis.call('HDEL', plans, step)
    if task then
      dropped = dropped + return_or_drop(returned, tries, ledger, task, cause, tonumber(limit), reason, detail)
    end
  end
end
return dropped
