-- How many live attempts were granted for each version of a lineage: the groups in flight, and how
-- stale they may become.
-- O(attempts held), with a string match each: the learner asks when a batch is otherwise complete.
-- KEYS attempts held   ARGV lineage   Reply {version, number, ...}
local attempts, held = unpack(KEYS)
local now, counts, reply = now_ms(), {}, {}
local records = redis.call('HGETALL', held)
for i = 1, #records, 2 do
  local lineage, version = string.match(records[i + 1], '(%S+):(%d+)$')
  if lineage == ARGV[1] and tonumber(redis.call('ZSCORE', attempts, records[i]) or '0') > now then
    counts[version] = (counts[version] or 0) + 1
  end
end
for version, count in pairs(counts) do
  reply[#reply + 1] = version
  reply[#reply + 1] = tostring(count)
end
return reply
