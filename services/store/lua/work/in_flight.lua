-- Count the groups in flight by the version of a lineage for which they were leased. A finished group that waits
-- for the stream counts only if no later batch may train it: the stream takes it at once. The learner must not
-- wait for other waiting groups, which wait for the learner.
-- O(attempts held), with a string match each: the learner asks when a batch is otherwise complete.
-- KEYS attempts held run
-- ARGV lineage
-- Reply {version, number, ...}
local r = hash_fields(run, 'version', 'max_staleness')
local last = tonumber(r.version or '0') - tonumber(r.max_staleness or '0')
local now, counts, reply = now_ms(), {}, {}
local records = redis.call('HGETALL', held)
for i = 1, #records, 2 do
  local leased, version, waits = string.match(records[i + 1], '(%S+):(%d+)( ?%a*)$')
  if leased == lineage and (waits == '' or tonumber(version) <= last)
    and tonumber(redis.call('ZSCORE', attempts, records[i]) or '0') > now then
    counts[version] = (counts[version] or 0) + 1
  end
end
for version, count in pairs(counts) do
  reply[#reply + 1] = version
  reply[#reply + 1] = tostring(count)
end
return reply
