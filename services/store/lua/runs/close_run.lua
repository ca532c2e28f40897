-- Free what a run holds that has ended, and reply what a run needs that continues it.
-- Invariants: the run's state is final. Afterwards learners and workers are shut out (new fencing token, all attempts
-- ended), each task that has not ended is in `returned`, and all payloads are deleted. A repeated call changes nothing.
-- O(in flight + waiting), once per run.
-- KEYS run order returned attempts held groups blobs bytes plans tries partials lineages ...
--   further keys (services.store.keys.EMPTIED_PARTS) are deleted
-- Reply {} if the run has not ended, else {[committed_step, checkpoint], [position, epoch, rows, index], lineages,
--   open tasks in the run's order}
if not final(redis.call('HGET', run, 'state')) then return {} end
also_when_full(run)
redis.call('HINCRBY', run, 'fencing_token', 1)
for _, record in ipairs(redis.call('HVALS', held)) do
  return_task(returned, string.match(record, '^(%S+)'))
end
for _, entry in ipairs(redis.call('XRANGE', groups, '-', '+')) do
  local task = task_of(entry)
  return_task(returned, task)
  remove_group(groups, blobs, bytes, entry[1], task)
end
redis.call('DEL', attempts, held, blobs, bytes, plans, tries, partials)
-- The state of live sessions is kept for an hour.
local prefix = string.gsub(run, 'run$', 'sessions:')
for i = 13, #KEYS do
  if string.find(KEYS[i], ':sessions_%a+$') then
    for _, id in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do redis.call('EXPIRE', prefix .. id, 3600) end
  end
  redis.call('DEL', KEYS[i])
end
return {
  redis.call('HMGET', run, 'committed_step', 'checkpoint'),
  redis.call('HMGET', order, 'position', 'epoch', 'rows', 'index'),
  redis.call('LRANGE', lineages, 0, -1),
  redis.call('ZRANGE', returned, 0, -1),
}
