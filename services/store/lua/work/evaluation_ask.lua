-- Request an evaluation: open it, or queue it behind earlier requests.
-- Invariants: fenced. At most one evaluation is open. A repeated call changes nothing.
-- KEYS run evaluation evaluation_queue evaluation_requests evaluation_returned evaluation_parts
-- ARGV fencing_token id request files
--   files: with answers that exist already
-- Reply 1 requested, -1 fenced
if fenced(run, fencing_token) then return -1 end
if redis.call('HSETNX', evaluation_requests, id, request) == 0 then return 1 end
if files ~= '0' then redis.call('HSET', evaluation_parts, id, files) end
redis.call('RPUSH', evaluation_queue, id)
open_evaluation(evaluation, evaluation_queue, evaluation_requests, evaluation_returned)
return 1
