-- Set fields of a run, for the learner that holds it.
-- Invariant: fenced.
-- KEYS run
-- ARGV fencing_token fields...
-- Reply 1, or -1 fenced
if fenced(run, fencing_token) then return -1 end
for i = 1, #fields, 2 do redis.call('HSET', run, fields[i], fields[i + 1]) end
return 1
