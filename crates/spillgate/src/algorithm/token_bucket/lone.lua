-- Decisions over one token bucket each in its steady state, or crowds of them: no record yet, or a short
-- one that was written under the very numbers that are asked for. Hot calls hold nothing else, so this is
-- written out, without a function or a table for each, and gives the same answers as steady.lua.
--
-- They are taken in order, up to the first that is not of this kind, at `at`.

local at, size = program[3], #program
-- The limit that was read last, and its numbers.
local known, burst, forced_max, n, count, head, high_code
local unpack_record, pack_record = struct.unpack, struct.pack
-- The instant's 48 low bits, and what is above them.
local now_low = now % 281474976710656
local now_high = (now - now_low) / 281474976710656

-- Made when a call first asks for it.
local function new_reserved()
    -- @reserved@
end

local reserved
while at < size do
    local operation, p, times = program[at], at, 1
    if operation == 6 or operation == 7 then
        reserved = reserved or new_reserved()
        local after = reserved(at)
        if not after then
            break
        end
        at = after
    else
        if operation == 8 then
            p, times = at + 1, program[at + 1]
        elseif operation ~= 0 then
            break
        end
        if program[p + 1] ~= 1 or program[p + 6] ~= 0 then
            break
        end
        local key, l, cost = program[p + 2], program[p + 4], program[p + 5]
        if l ~= known then
            if program[l] ~= 1 or program[l + 6] ~= 1 or program[l + 9] == 0 or program[l + 7] >= 65536
                or program[l + 1] >= 15 then
                break
            end
            known, burst, forced_max, n, count = l, program[l + 3], program[l + 4], program[l + 5], program[l + 7]
            head, high_code = program[l + 1] * 16, program[l + 9] * 16
        end
        local used, drained = 0, 0
        local value = values[key]
        if not value then
            if lost_us > 0 and now - lost_us < burst * n then
                break
            end
        else
            if #value ~= 12 then
                break
            end
            local head_then, high, low, count_then, used_then = unpack_record('>I1I1I6I2I2', value)
            local boundary_high = high % 16
            local elapsed = (now_high - boundary_high) * 281474976710656 + now_low - low
            if head_then ~= head or high - boundary_high ~= high_code or count_then ~= count or elapsed < 0
                or used_then > forced_max then
                break
            end
            local rest = elapsed % n
            local left = used_then - (elapsed - rest) / n
            if left > 0 then
                used, drained = left, rest
            end
        end
        local would, granted = used + cost, 0
        if cost == 0 or would >= 65536 then
            break
        end
        if would <= burst then
            granted = 1
            if times > 1 then
                granted = floor((burst - used) / cost)
                granted = granted < times and granted or times
            end
            local charged = used + granted * cost
            if charged >= 65536 then
                break
            end
            local low, high = now_low - drained, high_code + now_high
            if low < 0 then
                low, high = low + 281474976710656, high - 1
            end
            values[key] = pack_record('>I1I1I6I2I2', head, high, low, count, charged)
            if not fresh[key] then
                changed = changed + 1
                changes[changed] = key
            end
            fresh[key] = charged * n - drained
            used = would
        end
        if operation == 8 then
            out[o] = granted
            o = o + 1
        end
        out[o], out[o + 1], out[o + 2], out[o + 3] = granted > 0 and 1 or 0, used, drained, -1
        if operation == 8 then
            o = o + 4
            if granted > 1 then
                used = used + (granted - 1) * cost
            end
            out[o], out[o + 1], out[o + 2], out[o + 3] = used + cost <= burst and 1 or 0, used, drained, -1
        end
        o, at = o + 4, p + 7
    end
end
