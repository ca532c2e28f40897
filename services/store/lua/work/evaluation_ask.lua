-- Request an evaluation: it is opened, or waits behind those that were requested before.
-- Invariants: fenced; one is open at a time; a repeated call changes nothing.
-- KEYS run evaluation queue requests returned parts
-- ARGV fencing_token id json(request) files (of answers that are there already)
-- Reply 1 requested, -1 fenced
local run, evaluation, queue, requests, returned, parts = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
if redis.call('HSETNX', requests, ARGV[2], ARGV[3]) == 0 then return 1 end
if ARGV[4] ~= '0' then redis.call('HSET', parts, ARGV[2], ARGV[4]) end
redis.call('RPUSH', queue, ARGV[2])
open_evaluation(evaluation, queue, requests, returned)
return 1
