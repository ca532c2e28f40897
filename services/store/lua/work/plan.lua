-- Record which groups batch `step` trains, before it is trained, and the lineage that plans it.
-- Invariants: fenced. A recorded plan never changes: a restarted learner trains the same groups. A step that a
-- checkpoint covers is not planned again.
-- KEYS run plans
-- ARGV fencing_token step batch
--   batch: json([[entry, task], ...])
-- Reply 1 recorded (now, or by the same call before), 0 the step has another plan or a checkpoint, -1 fenced
if fenced(run, fencing_token) then return -1 end
local r = hash_fields(run, 'lineage', 'committed_step')
if tonumber(step) <= tonumber(r.committed_step or '0') then return 0 end
local plan = '{"lineage":' .. cjson.encode(r.lineage) .. ',"pairs":' .. batch .. '}'
if redis.call('HSETNX', plans, step, plan) == 1 then return 1 end
return redis.call('HGET', plans, step) == plan and 1 or 0
