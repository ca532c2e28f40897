-- Forget an evaluation: one that has been reported, or that nobody will wait for.
-- Invariants: fenced; only the one meant; a repeated call changes nothing.
-- KEYS run evaluation queue requests ended returned attempts held parts answers   ARGV fencing_token id row...
-- (rows: whose answers may be left)   Reply 1 forgotten, 0 not there, -1 fenced
local run, evaluation, queue, requests, ended, parts, answers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[9], KEYS[10]
local id = ARGV[2]
if fenced(run, ARGV[1]) then return -1 end
also_when_full(run)
if redis.call('HDEL', requests, id) == 0 then return 0 end
redis.call('HDEL', ended, id)
redis.call('HDEL', parts, id)
redis.call('LREM', queue, 0, id)
for i = 3, #ARGV do redis.call('HDEL', answers, id .. ' ' .. ARGV[i]) end
if redis.call('HGET', evaluation, 'id') == id then
  redis.call('DEL', evaluation, KEYS[6], KEYS[7], KEYS[8])
  open_evaluation(evaluation, queue, requests, KEYS[6])
end
return 1
