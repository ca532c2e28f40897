-- End the open evaluation, because nobody can answer it, and open the next.
-- Invariant: another one than the one meant stays as it is.
-- KEYS evaluation queue requests ended returned attempts held   ARGV id reason
-- Reply 1 failed, 0 not open
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
end_evaluation(KEYS, ARGV[1], 'failed', ARGV[2])
return 1
