-- Make the sessions of an attempt. KEYS sessions   ARGV seconds_kept field value...   Reply 1
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
