-- Fast path: the last operation of a call, if it charges one unit to one sliding log in steady state. Such a log has a
-- ring, was written under the parameters of the call, and no clock stepped back. Few units expired since. Most decisions
-- over logs are of this kind. The functions of sliding_log.lua take longer to create than this takes to run. It writes
-- at once, since no operation follows.

-- @include sliding_log/ring

-- The bytes of a record with its head, and the most units that are examined.
local RECORD, LOOKS = 35, 8

-- If the decision is of another kind, `break` leaves `at` unchanged, and the general path decides.
repeat
    local key, l = program[at + 2], program[at + 4]
    local own_key, value, most, period_us = KEYS[keys_read + program[at + 3]], values[key], program[l + 3], program[l + 4]
    if program[at] ~= CHARGE or program[at + 5] ~= 1 or program[at + 6] ~= 0 or not value or #value ~= RECORD
        or byte(value) ~= program[l + 1] * 16 + 5 then
        break
    end
    local count, period_then_us, incarnation, shift_us, last_us, used, head, places = unpack_record(BODY, value, 2)
    if count ~= most or period_then_us ~= period_us or shift_us ~= 0 or last_us > now
        or now - last_us >= period_us or places == 0 then
        break
    end
    local text = redis.pcall('GETRANGE', own_key, head * WIDTH, (head + LOOKS) * WIDTH - 1)
    if text.err then
        break
    end
    local expired, oldest_us = 0, nil
    while expired * WIDTH < #text do
        oldest_us = last_us - (last_us - unpack_record(UNIT, text, expired * WIDTH + 1)) % WRAP
        if oldest_us > now - period_us then
            break
        end
        expired = expired + 1
    end
    used, head = used - expired, (head + expired) % places
    local granted, apt = used < most and 1 or 0, nil
    -- @inline is_apt(used + 1, places) -> apt
    -- Force used more than the limit, or the end of the ring was reached, or it is lost or not apt.
    if used > most or expired * WIDTH >= #text or granted == 1 and not apt then
        break
    end
    if granted == 1 then
        redis.call('SETRANGE', own_key, (head + used) % places * WIDTH, pack_record(UNIT, now % WRAP))
        used, last_us = used + 1, now
        keep(own_key, nil, period_us)
        keep(KEYS[key], string.sub(value, 1, 1)
            .. pack_record(BODY, count, period_us, incarnation, 0, now, used, head, places), period_us)
    end
    out[o], out[o + 1] = granted, used
    out[o + 2], out[o + 3] = used < most and 0 or oldest_us - now + period_us, last_us - now + period_us
    at = size + 1
until true
