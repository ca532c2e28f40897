-- Change fields of a run on request, and add an event.
-- Invariants: the run's state is one of `states`. The run's edits are what the caller has read, so none is lost.
-- KEYS run events
-- ARGV states edits now kind event fields...
--   states: words. edits: as read, '' for none. kind, event: of the event, and its data. fields: name, text, name, text, …
-- Reply 'edited', 'again' the edits have changed, or the state that is not among `states` ('' the run is gone)
local r = hash_fields(run, 'state', 'edits')
if not r.state then return '' end
if not words(states)[r.state] then return r.state end
if (r.edits or '') ~= edits then return 'again' end
for i = 1, #fields, 2 do redis.call('HSET', run, fields[i], fields[i + 1]) end
redis.pcall('XADD', events, 'MAXLEN', '~', 20000, '*', 'kind', kind, 'time', now, 'data', event)
return 'edited'
