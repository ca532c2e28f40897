-- Make a durable checkpoint the run's current one, and end the draws it was trained on.
-- Invariants: fenced; steps only go forward; a group is acknowledged, deleted and written to the
-- ledger in the same moment, and only when a checkpoint holds what it taught.
-- KEYS run plans groups blobs bytes ledger tries
-- ARGV epoch lineage step directory
-- Reply groups acknowledged, or -1 fenced
local run, plans, groups, blobs, bytes, ledger, tries = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local step = tonumber(ARGV[3])
local committed = tonumber(redis.call('HGET', run, 'committed_step') or '0')
local acknowledged = 0
for s = committed + 1, step do
  local plan = redis.call('HGET', plans, s)
  if plan then
    local draws = {}
    for _, pair in ipairs(cjson.decode(plan)) do
      local position = position_of(pair[2])
      redis.call('XACK', groups, 'learner', pair[1])
      redis.call('XDEL', groups, pair[1])
      redis.call('DECRBY', bytes, redis.call('HSTRLEN', blobs, position))
      redis.call('HDEL', blobs, position)
      redis.call('HDEL', tries, position .. ' stale', position .. ' verifier_error')
      draws[#draws + 1] = pair[2]
    end
    redis.call('XADD', ledger, '*', 'end', 'trained', 'step', s, 'lineage', ARGV[2],
      'draws', cjson.encode(draws))
    redis.call('HDEL', plans, s)
    acknowledged = acknowledged + #draws
  end
end
redis.call('HSET', run, 'committed_step', step, 'checkpoint', ARGV[4])
return acknowledged
