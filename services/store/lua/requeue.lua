-- The learner takes stale groups out of the stream without training them: back to be sampled again,
-- until they were stale `limit` times; then their tasks end.
-- Invariants: fenced; a group leaves the stream, its payload and its bytes together, and its
-- task is in exactly one of {returned, ledger} afterwards.
-- KEYS run groups blobs bytes returned tries ledger
-- ARGV fencing_token limit entry...
-- Reply -1 fenced, else how many tasks were dropped
local run, groups, blobs, bytes, returned, tries, ledger = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local limit, dropped = tonumber(ARGV[2]), 0
for i = 3, #ARGV do
  local entry = redis.call('XRANGE', groups, ARGV[i], ARGV[i])[1]
  if entry then
    local task = entry[2][2]
    remove_group(groups, blobs, bytes, ARGV[i], task)
    if failed_again(tries, task, 'stale') >= limit then
      drop_task(ledger, tries, task, 'too_slow', 'stale ' .. limit .. ' times')
      dropped = dropped + 1
    else
      put_back(returned, task)
    end
  end
end
return dropped
