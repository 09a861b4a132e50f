-- Decides: reads every counter of a call, executes the operations in order, and writes the changed values.
--
-- Each decision is all or none by itself: if every enforced counter has room, all are charged, else none. The
-- fast paths come first. An algorithm's functions are created when a call first needs them.
--
-- KEYS:    the value of each rule and subject, and the keys of reservations, all of one hash tag; the guard, if ARGV[2]
--          is given; then the own keys of logs and permits, which may be large and are never read as a whole
-- ARGV[1]: a charge of one bucket as single_charge.lua describes it; or msgpack, one flat array, the program:
--            given_us (0: read TIME; tests give it), nonce (below 2^48, unique for each call: names new incarnations and permits),
--            the index of the first operation, the number of keys before the own keys;
--            limits, each: algorithm 1-5, name 0-14 or 15, long name (8 bytes, or 0), its algorithm's parameters;
--            operations, each: its number, and its words
-- ARGV[2]: the value that the caller expects the guard to have
-- ARGV[3]: if the shard lost its state: the instant at which missing counters count as used up, in us
-- Returns: integers: now_us, and the words of each operation.
--          Or now_us, -2: now lies outside a calendar of the program; nothing was executed.
--          Or now_us, -3: the guard has another value; nothing was executed.
--
-- Operation           words in the program                               words in the reply
-- 0 CHARGE, 2 PEEK    group; number of shadow rules, a group for each    a counter for each
-- 1 RESERVE           as 0                                               a counter and a receipt for each
-- 3 FORCE             key, own key, limit, cost                          the counter
-- 4 REFUND            key, own key, limit, incarnation, at_us, amount,   whole units refunded, the counter
--                     mark, unused
-- 5 LOWER             key, own key, limit, amount                        as 4
-- 6 OPEN, 7 CLOSE     see reservation.lua (in the script of leases: lease.lua)
-- 8 COALESCED         number of equal decisions, then as 0; no permits   for each group: how many were charged; the
--                                                                        counters for the first decision; the counters
--                                                                        for a denied one
-- Group:   number of counters, for each: key, own key, limit, cost. Keys are given by their index, own keys by their
--          index among the own keys, limits by the index where they begin. Only a log and permits have an own key, else 0.
-- Counter: fits (1, 0, or -1: the state has an unknown format, nothing was done), its algorithm's reply; for permits
--          a receipt.
-- Receipt: the incarnation (0: nothing was charged), and a mark: of a bucket see token_bucket.lua; of a permit the
--          position of its counter's `fits` in the reply, counted from 1; else 0.

local CHARGE, RESERVE, PEEK, FORCE, REFUND, LOWER, OPEN, CLOSE, COALESCED = 0, 1, 2, 3, 4, 5, 6, 7, 8
local pack_record, unpack_record = struct.pack, struct.unpack
local program

-- Reads the clock: the instant, its 48 low bits, and the bits above them.
-- @fragment read_clock(given_us) -> now, now_low, now_high
now = given_us
if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
now_low = now % 281474976710656
now_high = (now - now_low) / 281474976710656
-- @end

-- Lowers the number of charged decisions to the number that a counter has room for. `cost` is above 0.
-- @fragment admit(room, cost) -> granted
if room < granted * cost then
    granted = room > 0 and (room - room % cost) / cost or 0
end
-- @end

-- Computes the life of a key: the time until its state is irrelevant, and half a step to one and a half steps
-- more, in whole steps. Few distinct lives mean few numbers to format. A key that ends soon takes a small
-- step, unless the call brings its own instant: that one may differ as much from the server's clock.
-- @fragment key_step(until_us, given_us) -> step_us
local below_us = 1280000
if given_us > 0 or until_us >= 1000000 then
    below_us = 32000000
end
while until_us >= below_us do
    below_us = below_us * 2
end
step_us = below_us / 64
-- @end

-- @fragment key_life(until_us, step_us) -> life_us
life_us = until_us + step_us / 2
life_us = life_us - life_us % step_us + step_us
-- @end

-- @include single_charge

-- For each record kind: the size of its body, and the algorithm that owns it.
local SIZES, OWNERS = '@sizes@', '@owners@'
local NAMED = 15
local LOG, SLOTS = 3, 5
-- More than the words of a call, so that key * MANY + limit is unique.
local MANY = 65536
-- A call of so many keys writes several by one command, whose arguments must fit Lua's stack. The command is of Redis 8.4
-- and of Valkey 9.1; older Valkeys of higher number do not know it.
local TOGETHER, TOGETHER_MAX, HAS_MSETEX = 8, 1024, 0x080400

-- Locals for functions that run for every counter: a local is faster than a global.
local byte, floor, ceil, max, min = string.byte, math.floor, math.ceil, math.max, math.min

program = program or cmsgpack.unpack(ARGV[1])
local given_us, nonce, keys_read = program[1], program[2], program[4]
local now, now_low, now_high
-- @inline read_clock(given_us) -> now, now_low, now_high
local values = redis.call('MGET', unpack(KEYS, 1, keys_read))
if ARGV[2] and values[keys_read] ~= ARGV[2] then
    return { now, -3 }
end
-- If the clock stepped back behind the loss, the loss counts from now on.
local lost_us = min(tonumber(ARGV[3] or 0), now)
-- For each key whose value a fast path or a reservation changed: the us until the value is irrelevant, or false to keep
-- the key's life.
local fresh = {}
local out, o = { now }, 2

-- Lives as text, by life in us.
local lives = {}

-- @fragment life_text(life_us) -> text
text = lives[life_us] or string.format('%.0f', ceil(life_us / 1000))
lives[life_us] = text
-- @end

-- Writes a value, or deletes its key if it holds nothing. Without a value, only sets the life of the key.
-- `value` is a text, false to delete, or nil if the caller has written the key already. `until_us` is false to keep the
-- key's life.
local function keep(name, value, until_us)
    if value == false then
        redis.call('DEL', name)
        return
    elseif not until_us then
        redis.call('SET', name, value, 'KEEPTTL')
        return
    end
    local step_us, life_us, text
    -- @inline key_step(until_us, given_us) -> step_us
    -- @inline key_life(until_us, step_us) -> life_us
    -- @inline life_text(life_us) -> text
    if value then
        redis.call('SET', name, value, 'PX', text)
    else
        redis.call('PEXPIRE', name, text)
    end
end

-- Writes the values in `fresh`: all of one life by one command, where the server has it and the user may call it. A call
-- of few keys does not ask for that, since asking takes as long as writing one of them.
-- @fragment write_fresh()
local groups = false
if keys_read >= TOGETHER and keys_read <= TOGETHER_MAX and next(fresh) and (redis.VALKEY_VERSION_NUM or redis.REDIS_VERSION_NUM or 0) >= HAS_MSETEX then
    local is_known, is_allowed = pcall(redis.acl_check_cmd, 'MSETEX', 1, KEYS[1], '', 'PX', 1)
    groups = is_known and is_allowed and {}
end
for key, until_us in pairs(fresh) do
    local value = values[key]
    if groups and value then
        local step_us, life_us = nil, false
        if until_us then
            -- @inline key_step(until_us, given_us) -> step_us
            -- @inline key_life(until_us, step_us) -> life_us
        end
        local group = groups[life_us] or { 'MSETEX', 0 }
        local length = #group
        groups[life_us], group[length + 1], group[length + 2] = group, KEYS[key], value
    else
        keep(KEYS[key], value, until_us)
    end
end
for life_us, group in pairs(groups or {}) do
    local length, text = #group, nil
    group[2], group[length + 1] = length / 2 - 1, 'KEEPTTL'
    if life_us then
        -- @inline life_text(life_us) -> text
        group[length + 1], group[length + 2] = 'PX', text
    end
    redis.call(unpack(group))
end
-- @end

-- @include bucket_loop

-- The last operation is one decision over one log. log_check.lua advances `at` if it takes it.
if at + 6 == size and program[program[at + 4]] == LOG then
    -- @include log_check
end
if at > size then
    -- @inline write_fresh()
    return out
end

-- Returns floor(a * b / c) and the remainder, within the integers that a double holds exactly; c is below 2^51.
local function mul_div(a, b, c)
    local product = a * b
    if product < 9007199254740992 then
        local quotient = floor(product / c)
        return quotient, product - quotient * c
    end
    -- The product is too large: multiplies bit by bit of `a`, from the highest, and reduces after each bit.
    local b_quotient = floor(b / c)
    local b_rest = b - b_quotient * c
    local quotient, rest = 0, 0
    local bits, length = math.frexp(a)
    for _ = 1, length do
        bits, quotient, rest = bits * 2, quotient * 2, rest * 2
        if bits >= 1 then
            bits, quotient, rest = bits - 1, quotient + b_quotient, rest + b_rest
        end
        while rest >= c do
            quotient, rest = quotient + 1, rest - c
        end
    end
    return quotient, rest
end

-- Creates the functions that fixed_window.lua, sliding_log.lua and sliding_window.lua share: only in calls that use one
-- of these, since each function that is created costs a call more than most formulas.
-- @fragment counting() -> params, force, receipt
params = function(program, i)
    return { count = program[i], period_us = program[i + 1] }, i + 2
end
-- Charges up to `cost` even without room, up to the limit of force.
force = function(self, limit, cost)
    cost = min(cost, min(2 * limit.count, 4294967295) - limit.count + limit.module.room(self, limit))
    self.gone_after_us = nil
    if cost > 0 then
        limit.module.charge(self, limit, cost)
    end
end
receipt = function(self)
    if self.incarnation == 0 then
        self.incarnation = nonce
    end
    return self.incarnation, 0
end
-- @end

-- Creates an algorithm's functions.
local function new_module(algorithm)
    if algorithm == 1 then
        -- @include token_bucket
    elseif algorithm == 2 then
        -- @include fixed_window
    elseif algorithm == 3 then
        -- @include sliding_log
    elseif algorithm == 4 then
        -- @include sliding_window
    else
        -- @include concurrency
    end
end

local modules = {}
local function module(algorithm)
    modules[algorithm] = modules[algorithm] or new_module(algorithm)
    return modules[algorithm]
end

local limits = {}
local l = 5
while l < program[3] do
    local algorithm = program[l]
    local owner = module(algorithm)
    local limit, after = owner.params(program, l + 3)
    if not limit then
        return { now, -2 }
    end
    limit.algorithm, limit.module = algorithm, owner
    limit.name, limit.long_name = program[l + 1], program[l + 2]
    limits[l] = limit
    l = after
end

-- @include counters

local function answer(counter, limit, cost, fits)
    local first, width = o + 1, limit.module.width
    if counter then
        out[o] = fits and 1 or 0
        limit.module.reply(counter, limit, cost, out, first)
    else
        out[o] = -1
        for i = first, o + width do
            out[i] = 0
        end
    end
    o = first + width
end

-- While a reservation's record is being made: the charge of each counter.
local noted = false

-- Charges and answers the other decisions of COALESCED. Each uses its cost, and no other word of the reply changes.
local function charge_rest(first, last, granted)
    for p = first, last, 4 do
        local l, cost = program[p + 2], program[p + 3]
        local counter, limit = counters[program[p] * MANY + l], limits[l]
        if granted > 1 and cost > 0 then
            limit.module.charge(counter, limit, (granted - 1) * cost)
        end
        cost = cost > 0 and cost or 1
        answer(counter, limit, cost, counter and limit.module.room(counter, limit) >= cost)
    end
end

-- Charges the group of counters at program[place], for as many of `times` decisions as all have room for. With 0 times
-- the counters are only read. Returns the index behind the group, and that number.
-- The first pass finds how many decisions fit all counters. The second one charges and answers.
local function charge_group(place, operation, times)
    local first, last = place + 1, place + 4 * program[place]
    local granted, is_whole = times, true
    for p = first, last, 4 do
        local counter, limit = counter_at(p)
        local cost = program[p + 3]
        if counter then
            local room = limit.module.room(counter, limit)
            counter.fits = room >= (cost > 0 and cost or 1)
            if cost > 0 then
                -- @inline admit(room, cost) -> granted
            elseif not counter.fits then
                granted = 0
            end
        else
            granted, is_whole = 0, false
        end
    end
    if operation == COALESCED then
        out[o] = granted
        o = o + 1
    end
    for p = first, last, 4 do
        local key, l, cost = program[p], program[p + 2], program[p + 3]
        local counter, limit = counters[key * MANY + l], limits[l]
        local receipts = operation == RESERVE or limit.algorithm == SLOTS
        local incarnation, mark = 0, 0
        -- A denial writes only the re-base of a counter whose clock stepped back.
        if times > 0 and cost > 0 and (granted > 0 or is_whole and counter.rebased) then
            counter.changed, dirty[key] = true, true
            if granted > 0 then
                limit.module.charge(counter, limit, cost, o)
                if receipts then
                    incarnation, mark = limit.module.receipt(counter, o)
                end
            end
        end
        answer(counter, limit, cost > 0 and cost or 1, counter and counter.fits)
        if receipts then
            out[o], out[o + 1] = incarnation, mark
            o = o + 2
        end
        if noted then
            noted[#noted + 1] = pack_record('>I6I6I5', incarnation, mark, cost)
        end
    end
    if operation == COALESCED then
        charge_rest(first, last, granted)
    end
    return last + 1, granted
end

-- Decides the groups at program[p]. Returns the index of the next operation, and the number of decisions charged.
local function decide(p, operation, times)
    local shadows, granted = charge_group(p, operation, times)
    p = shadows + 1
    for _ = 1, program[shadows] do
        -- Shadow groups are charged for the granted decisions only: a denied request uses nothing.
        p = charge_group(p, operation, granted)
    end
    return p, granted
end

-- Executes FORCE, REFUND or LOWER for one counter. Returns the index of the next operation.
local function change(operation, p)
    local counter, limit, key = counter_at(p + 1)
    local returned
    if counter and operation == FORCE then
        limit.module.force(counter, limit, program[p + 4], o)
    elseif counter and operation == REFUND then
        returned = limit.module.refund(counter, limit, program[p + 4], program[p + 5],
            program[p + 6], program[p + 7], program[p + 8])
    elseif counter then
        returned = limit.module.lower_by(counter, limit, program[p + 4])
    end
    if counter and (returned or operation == FORCE) then
        counter.changed, dirty[key] = true, true
    end
    if operation ~= FORCE then
        out[o] = returned or 0
        o = o + 1
    end
    answer(counter, limit, 1, true)
    return p + (operation == REFUND and 9 or 5)
end

local reservations
while at <= size do
    local operation = program[at]
    if operation == COALESCED then
        at = decide(at + 2, COALESCED, program[at + 1])
    elseif operation >= OPEN then
        reservations = reservations or (function()
            -- @include reservation
        end)()
        at = reservations[operation](at)
    elseif operation > PEEK then
        at = change(operation, at)
    else
        at = decide(at + 1, operation, operation == PEEK and 0 or 1)
    end
end

for key in pairs(dirty) do
    store(key)
end
-- @inline write_fresh()
return out
