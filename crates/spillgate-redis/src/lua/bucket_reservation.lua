-- Fast path: reservations of one token bucket that are opened, or ended at their estimate or below it. The
-- bucket has no record yet, or one of kind 0 or 7 that was written under the parameters of the call. Most
-- reservations are of this kind. Values and replies are those of reservation.lua.

-- @include reservation_words
local LIFE_HEAD = 7 * 256
-- The bytes of the record of a one-counter reservation, without the caller's text.
local RECORD = 57

-- Executes OPEN or CLOSE at program[p] if it is of this kind. Returns the index of the next operation, or nothing.
return function(p)
    local program, out = program, out
    local is_open, key, l, cost = program[p] == OPEN, program[p + 6], program[p + 8], program[p + 9]
    local record = values[program[p + 1]]
    if program[p + 5] ~= 1 then
        return
    end
    local unused, opened_us, charged, mark = 0, now, 0, 0
    if is_open then
        if record or program[p + 10] ~= 0 or cost == 0 then
            return
        end
    else
        if program[p + 2] ~= ENDS or not record or #record < RECORD or program[l] ~= 1 then
            return
        end
        local actual, state, ends_us = cost, nil, nil
        -- @inline unpack_head(record) -> state, opened_us, ends_us
        -- @inline unpack_charge(record, 1) -> charged, mark, cost
        if state ~= 0 or now >= ends_us or byte(record, HEAD) ~= 1 then
            return
        end
        if actual ~= AS_CHARGED then
            unused = cost - actual
        end
        -- A final charge above the estimate is forced, which the general path does.
        if unused < 0 then
            return
        end
    end

    local granted, used, drained = 1, 0, 0
    if is_open or unused > 0 then
        local is_steady = true
        if l ~= known then
            -- @inline use_limit(l) -> is_steady
        end
        if not is_steady or long_us or lost_us > 0 then
            return
        end
        -- Incarnation 0 means that the bucket has no life.
        local value, incarnation = values[key], 0
        local span_us, low_used, low_drained, before_used, before_drained, floor_used, floor_drained, floor_before_used, floor_before_drained, returned
        if value then
            local size, high, burst_then = #value, high_now, burst
            if size == 63 then
                -- @inline unpack_life(value, 13, n) -> incarnation, burst_then, span_us, low_used, low_drained,
                --     before_used, before_drained, floor_used, floor_drained, floor_before_used,
                --     floor_before_drained, returned
                high = high + LIFE_HEAD
            end
            if burst_then ~= burst or size ~= 12 and size ~= 63 then
                return
            end
            -- @inline read_level(value, 1, format, high, most, n, 1, count, counts, false) -> used, drained,
            --     is_steady
            if not is_steady then
                return
            elseif used == 0 then
                incarnation = 0
            end
        end
        local span, is_changed = n * burst, false
        if incarnation > 0 then
            -- @inline note_low(used, drained, span) -> span_us, low_used, low_drained, before_used, before_drained,
            --     floor_used, floor_drained, floor_before_used, floor_before_drained
        end
        if is_open then
            -- @inline admit(burst - used, cost) -> granted
            if granted > 0 then
                used, is_changed = used + cost, true
                -- The first receipt starts the life: until now no charge of this bucket could be refunded.
                if incarnation == 0 then
                    incarnation, span_us, returned = nonce, now, 0
                    low_used, low_drained, before_used, before_drained = used, drained, used, drained
                    floor_used, floor_drained, floor_before_used, floor_before_drained = used, drained, used, drained
                end
                charged, mark = incarnation, returned
            end
        elseif charged > 0 and charged == incarnation and now >= opened_us then
            -- A refund needs the bucket's life of that charge, and a clock that has not stepped back behind it.
            local tokens, left, rest, back, back_rest
            -- @inline drain(now - opened_us, n) -> tokens, rest
            left = cost - tokens
            if left <= 0 then
                left, rest = 0, 0
            end
            -- @inline returnable(left, rest, unused, opened_us, mark, n, span, span_us, low_used, low_drained,
            --     before_used, before_drained, floor_used, floor_drained, floor_before_used, floor_before_drained,
            --     returned) -> back, back_rest
            -- @inline lower_to(used, drained) -> back, back_rest
            if back > 0 then
                is_changed = true
                -- @inline refund(back, back_rest, n) -> used, drained, low_used, low_drained, before_used,
                --     before_drained, returned
            end
        end
        if is_changed then
            local text, until_us = false, 0
            if used > 0 then
                local life
                -- @inline pack_level(used, drained, format, high_now + LIFE_HEAD, n, 1, count, counts, false) ->
                --     text, until_us
                -- @inline pack_life(incarnation, burst, span_us, low_used, low_drained, before_used, before_drained,
                --     floor_used, floor_drained, floor_before_used, floor_before_drained, returned, n) -> life
                text = text .. life
            end
            -- @inline note_change(key, text, until_us)
        end
    end

    if is_open then
        if granted > 0 then
            local charges, life, text
            -- @inline pack_charge(charged, mark, cost) -> charges
            -- @inline pack_open(program[p + 2], program[p + 3], 1, charges, program[p + 4]) -> text
            -- @inline record_life(program[p + 2]) -> life
            redis.call('SET', KEYS[program[p + 1]], text, 'PX', life)
            values[program[p + 1]] = text
        end
        out[o], out[o + 1], out[o + 2], out[o + 3] = granted > 0 and NEW or REFUSED, granted, used, drained
        out[o + 4], out[o + 5], out[o + 6] = -1, charged, mark
        o = o + 7
        return p + 11
    end

    local ended
    -- @inline pack_ended(record, program[p + 3]) -> ended
    redis.call('SET', KEYS[program[p + 1]], ended, 'KEEPTTL')
    values[program[p + 1]] = ended
    out[o] = DONE
    o = o + 1
    return p + 10
end
