-- Fast path: the last operation of a call, if it charges one sliding log in steady state. Such a log was written under
-- the parameters of the call, and no clock stepped back. Its first chunk has all entries that expired or matter for the
-- reply, and they are few. Most decisions over logs are of this kind. The functions of sliding_log.lua take longer to
-- create than this takes to run. It writes at once, since no operation follows.

-- @include sliding_log/nodes

-- The bytes of a record with its head, and the most entries that are examined.
local RECORD, LOOKS = 50, 8

-- If the decision is of another kind, `break` leaves `at` unchanged, and the general path decides.
repeat
    local key, own_key, l, cost = program[at + 2], KEYS[program[at + 3]], program[at + 4], program[at + 5]
    local value, most, period_us = values[key], program[l + 3], program[l + 4]
    if program[at] ~= CHARGE or program[at + 6] ~= 0 or cost == 0 or not value or #value ~= RECORD
        or byte(value) ~= program[l + 1] * 16 + 5 then
        break
    end
    local count, period_then_us, incarnation, shift_us, last_us, used, oldest, tail, head, place =
        unpack_record(BODY, value, 2)
    if count ~= most or period_then_us ~= period_us or shift_us ~= 0
        or last_us >= now or now - last_us >= period_us or oldest ~= head then
        break
    end
    local last_field = pack_record(FIELD, 0, tail)
    local texts = redis.pcall('HMGET', own_key, pack_record(FIELD, 0, head), last_field)
    if texts.err or not texts[1] or not texts[2] then
        break
    end

    -- Finds the entries that expired, and the wait until enough units expire for one more decision.
    local first = node_of(texts[1])
    local _, before = entry(first, place)
    local expired, next = 0, place + 1
    local at_us, through = now, before
    while next <= first.size and next <= place + LOOKS do
        at_us, through = entry(first, next)
        if at_us > now - period_us then
            break
        end
        expired, next = through - before, next + 1
    end
    if next > first.size or next > place + LOOKS then
        break
    end
    place, used = next - 1, used - expired
    local granted = 1
    -- @inline admit(most - used, cost) -> granted
    local over = used + granted * cost + cost - most
    local retry_us = 0
    if over > 0 and over <= used then
        if through - before - expired < over then
            break
        end
        retry_us = at_us - now + period_us
    elseif over > used then
        break
    end

    if granted > 0 then
        -- Appends an entry. A full chunk, or one whose entries become wider, needs the general path.
        local node = head == tail and first or node_of(texts[2])
        local worn, full
        if head == tail then
            -- @inline is_worn(place, node.size) -> worn
            if worn then
                if node.units_width > 0 then
                    break
                end
                node.text = string.sub(node.text, 1, HEAD_SIZE) .. string.sub(node.text, HEAD_SIZE + 1 + place * node.width)
                node.size, place = node.size - place, 0
            end
        end
        local units = node.size + 1
        if node.units_width > 0 then
            local _, so_far = entry(node, node.size)
            units = so_far + cost
        end
        -- @inline is_full(node, now) -> full
        if full or node.size == 0 or node.units_width == 0 and cost > 1
            or node.units_width > 0 and units >= 256 ^ node.units_width then
            break
        end
        redis.call('HSET', own_key, last_field, node.text .. pack_record(node.format, now - node.base_us, units))
        used, last_us = used + cost, now
        keep(own_key, nil, period_us)
        keep(KEYS[key], string.sub(value, 1, 1)
            .. pack_record(BODY, count, period_us, incarnation, 0, now, used, oldest, tail, head, place), period_us)
    end
    out[o] = granted
    out[o + 1] = used
    out[o + 2] = retry_us
    out[o + 3] = last_us - now + period_us
    at = size + 1
until true
