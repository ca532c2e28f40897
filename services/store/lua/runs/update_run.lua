-- Set fields of a run on behalf of the learner that holds it.
-- Invariant: fenced.   KEYS run   ARGV fencing_token field value ...   Reply 1, or -1 fenced
if fenced(KEYS[1], ARGV[1]) then return -1 end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
