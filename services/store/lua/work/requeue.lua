-- The learner takes groups out of the stream without training them, because they are stale or cannot be
-- read: back to be sampled again, until that was so `limit` times for the same cause; then their tasks
-- end. The plan of `step` (0: none) goes with them: what is left of it waits to be planned again.
-- Invariants: fenced; a group leaves the stream, its payload and its bytes together, and its
-- task is in exactly one of {returned, ledger} afterwards; no plan names a group that is gone.
-- KEYS run groups blobs bytes returned tries ledger plans
-- ARGV fencing_token limit cause reason detail step entry...
-- Reply -1 fenced, else how many tasks were dropped
local run, groups, blobs, bytes, returned, tries, ledger, plans = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local limit, dropped = tonumber(ARGV[2]), 0
for i = 7, #ARGV do
  local entry = redis.call('XRANGE', groups, ARGV[i], ARGV[i])[1]
  if entry then
    local task = entry[2][2]
    remove_group(groups, blobs, bytes, ARGV[i], task)
    redis.call('HDEL', plans, ARGV[6])
    dropped = dropped + return_or_drop(returned, tries, ledger, task, ARGV[3], limit, ARGV[4], ARGV[5])
  end
end
return dropped
