-- Write a run and, if it samples, the order of its tasks.
-- Invariants: a run is written once, whole. Each open task of the run that it continues is returned, so it is leased
-- first, or ends here as cancelled.
-- KEYS run order returned ledger lineages prompt_filter pass_rates
-- ARGV fields cursor open cancelled detail starts notes rates
--   fields, cursor: json({field: text}) of `run` and of `order`. open, cancelled: json([task, ...]).
--   starts: json([lineage:version, ...]). notes, rates: json({row: text})
-- Reply 1, or 0 if the run was written before
if redis.call('EXISTS', run) == 1 then return 0 end
for name, value in pairs(cjson.decode(fields)) do redis.call('HSET', run, name, value) end
for name, value in pairs(cjson.decode(cursor)) do redis.call('HSET', order, name, value) end
for _, task in ipairs(cjson.decode(open)) do return_task(returned, task) end
if #cjson.decode(cancelled) > 0 then
  redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', 'cancelled', 'detail', detail,
    'tasks', cancelled)
end
for _, lineage in ipairs(cjson.decode(starts)) do redis.call('RPUSH', lineages, lineage) end
for row, note in pairs(cjson.decode(notes)) do redis.call('HSET', prompt_filter, row, note) end
for row, rate in pairs(cjson.decode(rates)) do redis.call('HSET', pass_rates, row, rate) end
return 1
