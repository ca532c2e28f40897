-- The learner takes groups out of the stream without training them: back to be sampled again
-- (reason ''), or dropped. Stale groups go back until they were stale `limit` times.
-- Invariants: fenced; a group leaves the stream, its payload and its bytes together, and its
-- draw is in exactly one of {returned, ledger} afterwards.
-- KEYS run groups blobs bytes returned tries ledger
-- ARGV epoch reason detail limit entry...
-- Reply -1 fenced, else how many draws were dropped
local run, groups, blobs, bytes, returned, tries, ledger = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local reason, detail, limit, dropped = ARGV[2], ARGV[3], tonumber(ARGV[4]), 0
for i = 5, #ARGV do
  local entry = redis.call('XRANGE', groups, ARGV[i], ARGV[i])[1]
  if entry then
    local draw = entry[2][2]
    remove_group(groups, blobs, bytes, ARGV[i], draw)
    if reason ~= '' then
      drop_draw(ledger, tries, draw, reason, detail)
      dropped = dropped + 1
    elseif failed_again(tries, draw, 'stale') >= limit then
      drop_draw(ledger, tries, draw, 'too_slow', 'stale ' .. limit .. ' times')
      dropped = dropped + 1
    else
      put_back(returned, draw)
    end
  end
end
return dropped
