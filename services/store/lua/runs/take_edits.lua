-- Let the learner take the edits of a run, and add an event.
-- Invariants: fenced. The run's edits are what the learner has read. A repeated call changes nothing.
-- KEYS run events
-- ARGV fencing_token old new now event fields...
--   old, new: the edits. fields: of the run that scripts and records read: name, text, name, text, …
-- Reply 1 taken, 0 the edits have changed, -1 fenced
if fenced(run, fencing_token) then return -1 end
local present = redis.call('HGET', run, 'edits') or ''
if present == new then return 1 end
if present ~= old then return 0 end
also_when_full(run)
redis.call('HSET', run, 'edits', new)
for i = 1, #fields, 2 do redis.call('HSET', run, fields[i], fields[i + 1]) end
redis.pcall('XADD', events, 'MAXLEN', '~', 20000, '*', 'kind', 'edit', 'time', now, 'data', event)
return 1
