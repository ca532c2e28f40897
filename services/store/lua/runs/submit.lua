-- Write a run and, if it samples, the order of its tasks.
-- Invariants: a run is written once, whole. Each open task of the run that it continues is returned, so it is leased
-- first, or ends here as cancelled.
-- KEYS run order returned ledger lineages prompt_filter pass_rates
-- ARGV json({run field: text}) json({order field: text}) json([open task, ...])
--      json([cancelled task, ...]) detail json([lineage:version, ...]) json({row: note})
--      json({row: pass rate})
-- Reply 1, or 0 if the run was written before
if redis.call('EXISTS', run) == 1 then return 0 end
for name, value in pairs(cjson.decode(ARGV[1])) do redis.call('HSET', run, name, value) end
for name, value in pairs(cjson.decode(ARGV[2])) do redis.call('HSET', order, name, value) end
for _, task in ipairs(cjson.decode(ARGV[3])) do return_task(returned, task) end
local cancelled = cjson.decode(ARGV[4])
if #cancelled > 0 then
  redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', 'cancelled', 'detail', ARGV[5],
    'tasks', ARGV[4])
end
for _, lineage in ipairs(cjson.decode(ARGV[6])) do redis.call('RPUSH', lineages, lineage) end
for row, note in pairs(cjson.decode(ARGV[7])) do redis.call('HSET', prompt_filter, row, note) end
for row, rate in pairs(cjson.decode(ARGV[8])) do redis.call('HSET', pass_rates, row, rate) end
return 1
