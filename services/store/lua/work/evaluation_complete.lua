-- Record the answers to one evaluation row.
-- Invariant: each row is answered once, by the attempt that holds it. When every row has its
-- answers, the evaluation ends, and the next one opens.
-- KEYS evaluation queue requests ended returned attempts held answers   ARGV id attempt json(answers)
-- Reply 1 accepted, 0 discarded
local evaluation, attempts, held, answers = KEYS[1], KEYS[6], KEYS[7], KEYS[8]
local e = redis.call('HMGET', evaluation, 'id', 'rows')
if e[1] ~= ARGV[1] or not redis.call('ZSCORE', attempts, ARGV[2]) then return 0 end
local row = redis.call('HGET', held, ARGV[2])
-- A full Redis refuses this one, before anything has changed.
redis.call('HSET', answers, ARGV[1] .. ' ' .. row, ARGV[3])
redis.call('ZREM', attempts, ARGV[2])
redis.call('HDEL', held, ARGV[2])
if redis.call('HINCRBY', evaluation, 'answered', 1) == tonumber(e[2]) then
  end_evaluation(KEYS, ARGV[1], 'done', '')
end
return 1
