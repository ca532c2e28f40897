-- How many live attempts were granted to a worker that served this version: groups that are too
-- old for the next batch unless they come into this one.
-- O(attempts held), with a string match each: the learner asks when a batch is otherwise there.
-- KEYS attempts held   ARGV lineage:version   Reply their number
local attempts, held = unpack(KEYS)
local count, now = 0, now_ms()
local records = redis.call('HGETALL', held)
for i = 1, #records, 2 do
  if string.match(records[i + 1], '(%S+)$') == ARGV[1]
    and tonumber(redis.call('ZSCORE', attempts, records[i]) or '0') > now then
    count = count + 1
  end
end
return count
