-- Set fields of a run, for the learner that holds it.
-- Invariant: fenced.
-- KEYS run
-- ARGV fencing_token field value ...
-- Reply 1, or -1 fenced
if fenced(run, ARGV[1]) then return -1 end
for i = 2, #ARGV, 2 do redis.call('HSET', run, ARGV[i], ARGV[i + 1]) end
return 1
