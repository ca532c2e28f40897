-- The learner takes groups out of the stream without training them: back to be sampled again
-- (reason ''), or dropped. Stale groups go back until they were stale `limit` times.
-- Invariants: fenced; a group leaves the stream, its payload and its bytes together, and its
-- draw is in exactly one of {returned, ledger} afterwards.
-- KEYS run groups blobs bytes returned tries ledger
-- ARGV epoch reason cause limit entry...
-- Reply -1 fenced, else how many draws were dropped
local run, groups, blobs, bytes, returned, tries, ledger = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local reason, cause, limit, dropped = ARGV[2], ARGV[3], tonumber(ARGV[4]), 0
for i = 5, #ARGV do
  local entry = redis.call('XRANGE', groups, ARGV[i], ARGV[i])[1]
  if entry then
    local draw = entry[2][2]
    local position = position_of(draw)
    redis.call('XACK', groups, 'learner', ARGV[i])
    redis.call('XDEL', groups, ARGV[i])
    redis.call('DECRBY', bytes, redis.call('HSTRLEN', blobs, position))
    redis.call('HDEL', blobs, position)
    local why = reason
    if why == '' and redis.call('HINCRBY', tries, position .. ' ' .. cause, 1) >= limit then
      why = 'too_slow'
      redis.call('HDEL', tries, position .. ' ' .. cause)
    end
    if why == '' then
      redis.call('LPUSH', returned, draw)
    else
      redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', why, 'draws', cjson.encode({draw}))
      dropped = dropped + 1
    end
  end
end
return dropped
