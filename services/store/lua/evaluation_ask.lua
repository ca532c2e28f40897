-- Request an evaluation: it is opened, or waits behind those that were requested before.
-- Invariants: fenced; one is open at a time; a repeated call changes nothing.
-- KEYS run evaluation queue requests   ARGV fencing_token id json(request)
-- Reply 1 requested, -1 fenced
local run, evaluation, queue, requests = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
if redis.call('HSETNX', requests, ARGV[2], ARGV[3]) == 0 then return 1 end
redis.call('RPUSH', queue, ARGV[2])
open_evaluation(evaluation, queue, requests)
return 1
