/* What stands on one device: judged for many devices at once, and the contents worth most at given prices.
 *
 * `judge` says of every row what `problems.patterns.judge` says of one. `price` is an exact branch and bound over all
 * contents of the devices of one pool. A node is all contents whose pressure lies between two edges, with some options
 * (workload, variant, share) ruled out and some workloads there for certain. Its ceiling is an exact knapsack over share:
 * every replica feels the lower edge only, and pressure and memory have multipliers. Options that cannot be in anything
 * worth more than the goal are ruled out first, which leaves few. What a knapsack chose is judged as it really is: a
 * candidate, and a goal for all others. A node above the goal is cut in two: by pressure as long as that is what makes it
 * look good, else by a workload. Nothing is worth more than the highest ceiling that is open, so it may stop at any time.
 * Where prices are to settle, what is worth more than the goal lowers the price of what it serves instead of raising the
 * goal: at the prices that this ends with nothing is, and ceilings of before hold, since nothing is worth more than it was.
 *
 * Latencies are table x variant x grid share x batch, `inf` where nothing runs; units as in `problems.joint`. Equal input
 * gives equal output on any machine: no threads, no reordered arithmetic, and no clock but for whoever's time ends before
 * the work does, which is counted in elementary steps.
 */
#define _POSIX_C_SOURCE 199309L
#include "judging.h"
#include <time.h>

#define RESOURCES 4 /* pressure, memory, memory that must be lacking, and watts where they are capped */
#define NEVER -1e30
#define TURNS 6 /* moves of the multipliers of one node; one where it is cut by pressure whatever they are, of: */
#define MANY 5000 /* options */
#define WIDE 4 /* that is, as long as it has more than such a part of all pressures */
#define HUGE_RATE 1e200
#define LANES 8 /* sums at a time */
#define CHOICES_MAX 20000 /* of batches of one content: of more, each member has the one that is worth most */
#define NARROW 1e-6 /* pressures nearer than that are the same */
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FAST __attribute__((target_clones("avx2", "default"))) /* the same sums and maxima, more at a time */
#else
#define FAST
#endif

typedef struct {
    const double *pi, *replica, *rate_rps; /* by workload; the last: what is still asked for */
    const double *watt, *share, *fixed;    /* by pool; pool x workload; by pool */
    const double *held;                    /* below the whole share and with it x kind x variant: billed by memory, or none */
    int64_t cuts;
    const double *cut_steps, *cut_usd; /* cut; cut x workload */
} Prices;

/* What no prices change, table x variant x whole percent: the highest rate alone and beside others that do not press,
 * and the least watts. */
typedef struct {
    int64_t least; /* share */
    const double *highest; /* by kind: no device's pressure is higher */
    const int64_t *order;  /* variants by workload */
    double *alone_rps, *beside_rps, *least_w;
    double *speed, *pace; /* one by mean_ms and tail_ms: those are linear in the share between two of the grid */
} Tables;

typedef struct {
    double floor, tolerance; /* $/h: ceilings need not come below; how far above what was found they may stay */
    double least;            /* what contents must be worth to be returned */
    int64_t step;            /* shares are multiples of it */
    int64_t work, repeats;   /* most steps; further contents without a workload in common per improvement */
    int64_t room;            /* most contents to return */
    double settles;          /* lowers `pi` by so much of the tolerance below the goal instead of raising that; 0: not */
    double until_s;          /* of the monotonic clock: then it ends, whatever work is left */
} Effort;

typedef struct {
    double ceiling;
    int64_t work, found;
    int64_t *kind, *variant, *share_pct; /* found x (1, width, width) */
    double *worth, *pi;      /* by workload, as lowered */
} Found;

void judge(const Problem *p, int64_t rows, int64_t width, const int64_t *kind, const int64_t *variant, const int64_t *pct,
           const double *factor, int64_t eager, const Judged *out)
{
    for (int64_t row = 0; row < rows; row++)
        out->lawful[row] = (uint8_t)judge_row(p, kind[row], variant + row * width, pct + row * width,
                                              factor ? factor + row * width : NULL, (int)eager, width, out, row);
}

/* ---- pricing: options and nodes ---------------------------------------------------------------------------------- */

typedef struct {
    int32_t work, variant, pct; /* work: a second replica's is a workload of its own */
    double press, worth, bare, net;    /* worth where the lower edge is felt, also without its demand; net of multipliers */
    uint8_t loose;                     /* whether the upper edge matters */
    double memory, lacking, watt;      /* MiB of its batch, and of the one it would have where memory is no matter */
} Option;

typedef struct {
    int32_t kind, count, musts, counted, tight; /* counted: clients are; tight: memory may lack, and does */
    int32_t careful;                            /* memory is what the batches need that may be fastest */
    int32_t must[WHOLE];
    int32_t onces, once[WHOLE]; /* workloads whose demand counts once, whatever serves it */
    double low, high, ceiling, usd[RESOURCES];
    int64_t lowered; /* times that prices were before its options were weighed */
    Option *options; /* by workload, then share */
} Node;

typedef struct {
    double value;
    int64_t layers, deep; /* of the table */
    int count;
    Option chosen[WHOLE];
} Choice;

typedef struct {
    int32_t begin, end, forced; /* stairs; whether one of them must be chosen */
} Layer;

/* Contents of which each member may have any batch. */
typedef struct {
    int n;
    int64_t work[WHOLE], left; /* choices that may be looked at */
    int64_t batch[WHOLE][BATCHES_MAX], count[WHOLE]; /* that serve at all, those that are worth most net of power first */
    double best, part[WHOLE], rate[WHOLE][BATCHES_MAX], usd[WHOLE][BATCHES_MAX], watt[WHOLE][BATCHES_MAX];
    double most[WHOLE + 1], net[WHOLE + 1], least_mib[WHOLE + 1]; /* of those from here on; net of power */
    const double *mib[WHOLE];
} Freedom;

typedef struct {
    const Problem *p;
    const Tables *tables;
    const Prices *prices;
    const Effort *effort;
    Found *out;
    Freedom *freedom;
    int64_t pool, units;
    double goal, best, held;       /* the last: with whichever batches */
    Between at[WHOLE + 1];
    Node **open;
    int64_t nodes, nodes_room;
    double *table; /* of the knapsack, layer after layer; a layer's stairs are its workload's options worth choosing */
    Layer *layers;
    int32_t *stairs;
    int64_t table_room, stairs_room;
    uint8_t *barred; /* workloads */
    Prices now;
    int64_t lowered, *last; /* times that prices were lowered, and the last one of each workload's */
    Judged one;
} Search;

static double share_of(const Search *s, int64_t work, double rate)
{
    double part = rate / s->prices->rate_rps[work];
    return part < 1 ? part : 1;
}

/* $/h of a replica: what it has or takes whatever it does, what parts of its demand are worth, and what it draws costs,
 * which is never more than its share of what the device may draw: so they add up to no more than the device draws. */
static double base_of(const Search *s, int64_t kind, int64_t variant, int64_t pct)
{
    const Prices *y = s->prices;
    int64_t work = s->p->workload[variant];
    double usd = y->replica[work] - y->share[s->pool * s->p->workloads + work] * (double)pct;
    if (y->held) usd -= y->held[((pct >= WHOLE) * s->p->kinds + kind) * s->p->variants + variant];
    return usd;
}

static double gain_of(const Search *s, int64_t work, double part)
{
    const Prices *y = s->prices;
    double usd = y->pi[work] * part;
    for (int64_t c = 0; c < y->cuts; c++) {
        double each = y->cut_usd[c * s->p->workloads + work];
        if (each != 0) usd += each * ceil(part * (y->cut_steps[c] + 0.01) - 1e-9);
    }
    return usd;
}

static double drawn(const Search *s, int64_t pct, double watt)
{
    double most = (s->p->limit_w[s->pool] - s->p->idle_w[s->pool]) * (double)pct / WHOLE;
    if (!(most > 0)) most = 0;
    return s->prices->watt[s->pool] * (watt < most ? watt : most);
}

/* `granted` a hair above, for all batches. */
static void rates_at(Search *s, int64_t cell, int64_t work, int64_t pct, double slow, double *rate)
{
    const Problem *p = s->p;
    Between at = s->at[pct];
    int64_t nb = p->batches, low = (cell * p->shares + (at.low < 0 ? 0 : at.low)) * nb, high = (cell * p->shares + at.high) * nb;
    const double *speed = s->tables->speed, *pace = s->tables->pace;
    double limit = p->limit_ms[work] / slow * (1 + 2 * TOLERANCE), burst = p->burst[work], most = p->busy_max[work];
    int queues = p->end_to_end[work], bound = queues && isfinite(limit) && burst > 0;
    for (int64_t b = 0; b < nb; b++) {
        double fits = limit * ((1 - at.weight) * pace[low + b] + at.weight * pace[high + b]), busy = most;
        if (bound) {
            double spare = 2 * p->batch[b] * (fits > 2 ? fits - 2 : 0), borne = spare / (burst + spare);
            if (borne < busy) busy = borne;
        }
        if (queues && !(busy >= BUSY_MIN)) busy = BUSY_MIN;
        if (queues && busy < 1.01 * BUSY_MIN) fits -= burst * busy / (2 * (1 - busy) * p->batch[b]);
        int kept = fits >= (queues ? 2 : 1) && speed[low + b] > 0 && speed[high + b] > 0 && p->memory_mib[cell * nb + b] <= p->room_mib[s->pool] + TOLERANCE;
        rate[b] = kept ? busy * 1000 * p->batch[b] / slow * ((1 - at.weight) * speed[low + b] + at.weight * speed[high + b]) : 0;
    }
    s->out->work += 2 + nb / 2;
}

static double slowdown(const Problem *p, int64_t cell, double pressure, double own)
{
    return p->crowd[cell] * (1 + p->sensitivity[cell] * (pressure > own ? pressure - own : 0));
}

static int in(const int32_t *list, int32_t count, int64_t number)
{
    for (int32_t i = 0; i < count; i++)
        if (list[i] == number) return 1;
    return 0;
}

/* What an option is worth where so much presses, up to an upper edge. Only batches count that may be the fastest one in
 * between; where memory lacks, all that are no larger, at its multiplier. Of several replicas of one workload each serves
 * no more than those before it, and what they leave. */
FAST static void weigh(Search *s, const Node *n, Option *o, double low, double high)
{
    const Problem *p = s->p;
    int64_t cell = p->kind_table[n->kind] * p->variants + o->variant, work = p->workload[o->variant], fastest = 0, best = 0;
    double rate[BATCHES_MAX], above[BATCHES_MAX], worth[BATCHES_MAX], served[BATCHES_MAX], drawn_w[BATCHES_MAX], copy = (double)(o->work / p->workloads);
    double base = base_of(s, n->kind, o->variant, o->pct), pi = s->prices->pi[work], least, most = NEVER;
    const double *mib = p->memory_mib + cell * p->batches;
    rates_at(s, cell, work, o->pct, slowdown(p, cell, low, o->press), rate);
    if (copy > 0) rates_at(s, cell, work, o->pct, slowdown(p, cell, high, o->press), above);
    for (int64_t b = 0; b < p->batches; b++) {
        worth[b] = NEVER;
        if (!(rate[b] > 0)) continue;
        double part = share_of(s, work, rate[b]), own = part;
        if (copy > 0 && part * (copy + 1) > 1) {
            own = 1 - copy * share_of(s, work, above[b]);
            if (own > 1 / (copy + 1)) own = 1 / (copy + 1);
            if (own < 0) own = 0;
        }
        double watt = drawn_w[b] = watts(p->power_w + cell * p->shares * p->batches + b, s->at[o->pct], p->batches);
        served[b] = pi * own;
        worth[b] = base + gain_of(s, work, part) - pi * (part - own) - drawn(s, o->pct, watt);
        if (rate[b] > rate[fastest]) fastest = b;
        if (worth[b] > worth[best]) best = b;
    }
    least = rate[fastest];
    int careful = best != fastest || (n->tight && (n->tight > 1 || n->usd[1] > 0));
    if (careful) {
        if (!(copy > 0)) rates_at(s, cell, work, o->pct, slowdown(p, cell, high, o->press), above);
        least = 0;
        for (int64_t b = 0; b < p->batches; b++)
            if (above[b] > least) least = above[b];
    }
    o->worth = o->bare = NEVER, o->memory = o->watt = INFINITY, o->lacking = 0;
    int rivals = 0, capped = p->capped[s->pool], once = in(n->once, n->onces, work);
    for (int64_t b = 0; b < p->batches; b++) {
        if (!(rate[b] > 0)) continue;
        /* A plan may run smaller batches than the fastest, which draw less: ceilings hold for those as well. */
        if (worth[b] > o->worth) o->worth = worth[b];
        if (worth[b] - served[b] > o->bare) o->bare = worth[b] - served[b];
        if (drawn_w[b] < o->watt) o->watt = drawn_w[b];
        if (rate[b] < least * (1 - TOLERANCE)) continue;
        rivals++;
        if (mib[b] < o->memory) o->memory = mib[b];
        if (mib[b] > o->lacking) o->lacking = mib[b];
    }
    o->loose = (uint8_t)(copy > 0 || rivals > 1 || (n->tight && !careful));
    if ((n->tight < 2 && !capped) || !rivals) return;
    for (int64_t b = 0; b < p->batches; b++) {
        if (!(rate[b] > 0)) continue;
        double net = worth[b] - (once ? served[b] : 0) - (n->tight > 1 ? n->usd[1] * mib[b] : 0) - n->usd[3] * drawn_w[b];
        if (net <= most) continue;
        most = net, o->worth = worth[b], o->bare = worth[b] - served[b], o->watt = drawn_w[b];
        if (n->tight > 1) o->memory = mib[b];
    }
}

/* Above idle, where there is a cap. */
static double spare_w(const Search *s)
{
    return s->p->limit_w[s->pool] - s->p->idle_w[s->pool] + TOLERANCE;
}

static double constant(const Search *s, const Node *n)
{
    double room = s->p->room_mib[s->pool] + TOLERANCE;
    double usd = n->usd[0] * n->high + (n->usd[1] - n->usd[2]) * room - s->prices->fixed[s->pool];
    if (n->usd[3] > 0) usd += n->usd[3] * spare_w(s);
    for (int32_t i = 0; i < n->onces; i++) usd += s->prices->pi[n->once[i]];
    return usd;
}

/* What is worth most within each share, where everything may repeat itself: `best` is by share. No larger one matters
 * that is worth no more than a smaller one, and maxima are the same in any order. */
FAST static void fill_shares(const double *best, int64_t units, int64_t step, double *rest)
{
    double worth[WHOLE + LANES], back[WHOLE + 1 + LANES]; /* `back`: `rest` from behind, then nothing */
    int64_t least = units + 1, most = 0;
    for (int64_t k = 1; k <= units; k++) {
        worth[k - 1] = best[k * step];
        if (worth[k - 1] > (most ? worth[most - 1] : 0)) most = k, least = least < k ? least : k;
    }
    for (int64_t k = 0; k < LANES; k++) worth[most + k] = 0, back[units + 1 + k] = NEVER;
    back[units] = rest[0] = 0;
    for (int64_t u = 1; u <= units; u++) {
        double top[LANES], *from = back + units - u;
        for (int64_t j = 0; j < LANES; j++) top[j] = from[1];
        for (int64_t k = least; k <= (u < most ? u : most); k += LANES)
            for (int64_t j = 0; j < LANES; j++) {
                double sum = worth[k - 1 + j] + from[k + j];
                top[j] = sum > top[j] ? sum : top[j];
            }
        for (int64_t j = 1; j < LANES; j++) top[0] = top[j] > top[0] ? top[j] : top[0];
        rest[u] = from[0] = top[0];
    }
}

/* Nets at the node's multipliers; options that cannot be in anything worth more than the goal are ruled out, whatever
 * else there is, for no rest is worth more than one that may repeat itself. */
static void reduce(Search *s, Node *n)
{
    double best[WHOLE + 1] = {0}, rest[WHOLE + 1];
    int32_t kept = 0;
    for (int32_t i = 0; i < n->count; i++) {
        Option *o = &n->options[i];
        if (n->tight > 1 || s->p->capped[s->pool] || (n->usd[1] > 0 && !n->careful)) weigh(s, n, o, n->low, n->high);
        double worth = in(n->once, n->onces, s->p->workload[o->variant]) ? o->bare : o->worth;
        o->net = worth - n->usd[0] * o->press - (n->usd[1] > 0 ? n->usd[1] * o->memory : 0) + n->usd[2] * o->lacking - (n->usd[3] > 0 ? n->usd[3] * o->watt : 0);
        if (o->net > best[o->pct]) best[o->pct] = o->net;
    }
    fill_shares(best, s->units, s->effort->step, rest);
    double base = constant(s, n);
    for (int32_t i = 0; i < n->count; i++) {
        Option *o = &n->options[i];
        if (o->worth > NEVER / 2 && o->net + rest[s->units - o->pct / s->effort->step] + base > s->goal) n->options[kept++] = *o;
    }
    n->careful = n->usd[1] > 0;
    s->out->work += n->count / 2 + s->units * s->units / 8;
    n->count = kept;
}

/* What fits of a workload's options, share by share: one that is no better than a smaller one is left out. */
static int32_t stairs_of(Search *s, const Node *n, int32_t first, int32_t last, int needed, int32_t begin)
{
    int32_t end = begin;
    double most = needed ? NEVER / 2 : 0;
    for (int32_t i = first; i < last; i++) {
        if (n->options[i].net <= most) continue;
        most = n->options[i].net;
        if (end > begin && n->options[s->stairs[end - 1]].pct == n->options[i].pct) end--;
        s->stairs[end++] = i;
    }
    return end;
}

FAST static void add_layer(Search *s, const Node *n, Layer layer, int64_t number, int64_t deep)
{
    int64_t units = s->units, row = (deep + 1) * (units + 1);
    double *now = s->table + (number + 1) * row, *before = now - row;
    for (int64_t u = 0; u < row; u++) now[u] = layer.forced ? NEVER : before[u];
    for (int32_t i = layer.begin; i < layer.end; i++) {
        int64_t size = n->options[s->stairs[i]].pct / s->effort->step;
        double net = n->options[s->stairs[i]].net;
        for (int64_t k = deep ? 1 : 0; k <= deep; k++) {
            double *restrict to = now + k * (units + 1) + size;
            const double *restrict from = before + (deep ? k - 1 : 0) * (units + 1);
            for (int64_t u = 0; u <= units - size; u++) to[u] = from[u] + net > to[u] ? from[u] + net : to[u];
        }
    }
    s->layers[number] = layer;
    s->out->work += (layer.end - layer.begin + 1) * (deep + 1) * units / 8;
}

/* The best choice within share, at most so many of a workload and, where clients are counted, of all. */
static void knapsack(Search *s, const Node *n, Choice *found)
{
    const Problem *p = s->p;
    int64_t deep = n->counted ? p->clients[s->pool] : 0, row = (deep + 1) * (s->units + 1), layers = 0, most = n->count + 2;
    if (most * row > s->table_room) s->table = realloc(s->table, sizeof(double) * (size_t)(s->table_room = 2 * most * row));
    if (most > s->stairs_room) {
        s->stairs_room = 2 * most;
        s->stairs = realloc(s->stairs, sizeof(int32_t) * (size_t)s->stairs_room);
        s->layers = realloc(s->layers, sizeof(Layer) * (size_t)s->stairs_room);
    }
    for (int64_t u = 0; u < row; u++) s->table[u] = 0;
    int32_t last = 0, stairs = 0, musts = 0;
    while (last < n->count) {
        int32_t first = last, work = n->options[first].work, needed = in(n->must, n->musts, work);
        while (last < n->count && n->options[last].work == work) last++;
        int32_t end = stairs_of(s, n, first, last, needed, stairs);
        if (s->barred[work % p->workloads] || end == stairs) continue;
        musts += needed;
        add_layer(s, n, (Layer){stairs, end, needed}, layers++, deep);
        stairs = end;
    }
    int64_t k = deep, u = s->units;
    found->count = 0, found->layers = layers, found->deep = deep;
    found->value = musts < n->musts ? NEVER : s->table[layers * row + row - 1];
    for (int64_t at = layers - 1; at >= 0 && found->value > NEVER / 2; at--) {
        const double *now = s->table + (at + 1) * row, *before = now - row;
        double value = now[k * (s->units + 1) + u];
        if (!s->layers[at].forced && value == before[k * (s->units + 1) + u]) continue;
        for (int32_t i = s->layers[at].begin; i < s->layers[at].end; i++) {
            const Option *o = &n->options[s->stairs[i]];
            int64_t size = o->pct / s->effort->step;
            if (size > u || (deep && !k) || before[(deep ? k - 1 : 0) * (s->units + 1) + u - size] + o->net != value) continue;
            if (found->count < WHOLE) found->chosen[found->count++] = *o;
            u -= size, k -= deep ? 1 : 0;
            break;
        }
    }
}

/* As `reduce` does, by what the knapsack says of the rest: no workload is there twice. */
static void prune(const Search *s, Node *n, const Choice *c)
{
    const double *rest = s->table + c->layers * (c->deep + 1) * (s->units + 1) + c->deep * (s->units + 1);
    double base = constant(s, n);
    int32_t kept = 0;
    for (int32_t i = 0; i < n->count; i++) {
        Option *o = &n->options[i];
        int64_t left = s->units - o->pct / s->effort->step;
        if (in(n->must, n->musts, o->work) || o->net + rest[left] + base > s->goal) n->options[kept++] = *o;
    }
    n->count = kept;
}

/* ---- pricing: candidates ----------------------------------------------------------------------------------------- */

/* What lawful contents are worth above what their device costs; `NEVER` where they are not. Members in any order. */
static double really(Search *s, int64_t kind, int n, int64_t *variant, int64_t *pct)
{
    const Problem *p = s->p;
    for (int i = 1; i < n; i++)
        for (int j = i; j && (variant[j] < variant[j - 1] || (variant[j] == variant[j - 1] && pct[j] < pct[j - 1])); j--) {
            int64_t v = variant[j], c = pct[j];
            variant[j] = variant[j - 1], pct[j] = pct[j - 1], variant[j - 1] = v, pct[j - 1] = c;
        }
    if (n < p->width) variant[n] = -1;
    s->out->work += n * (6 + 3 * p->batches);
    if (n > p->width || !judge_row(p, kind, variant, pct, NULL, 0, p->width, &s->one, 0)) return NEVER;
    double usd = -s->prices->fixed[s->pool] - s->prices->watt[s->pool] * (s->one.draw_w[0] - p->idle_w[s->pool]);
    for (int i = 0; i < n; i++) {
        int64_t work = p->workload[variant[i]];
        double others = 0, own = share_of(s, work, s->one.granted_rps[i]);
        for (int j = 0; j < i; j++)
            if (p->workload[variant[j]] == work) others += share_of(s, work, s->one.granted_rps[j]);
        usd += base_of(s, kind, variant[i], pct[i]) + gain_of(s, work, own);
        /* No demand is served more than once. */
        if (others + own > 1) usd -= s->prices->pi[work] * (others < 1 ? others + own - 1 : own);
    }
    return usd;
}

static void keep(Search *s, int64_t kind, int n, const int64_t *variant, const int64_t *pct, double worth)
{
    Found *f = s->out;
    int64_t width = s->p->width, at = f->found, worst = 0;
    if (worth > s->best) {
        s->best = worth;
        double goal = (worth > s->effort->floor ? worth : s->effort->floor) + s->effort->tolerance;
        if (goal > s->goal && !s->effort->settles) s->goal = goal;
    }
    if (worth < s->effort->least) return;
    for (int64_t i = 0; i < f->found; i++) {
        int same = f->kind[i] == kind && (n == width || f->variant[i * width + n] < 0);
        for (int j = 0; same && j < n; j++) same = f->variant[i * width + j] == variant[j] && f->share_pct[i * width + j] == pct[j];
        if (same) return;
        if (f->worth[i] < f->worth[worst]) worst = i;
    }
    if (at == s->effort->room) at = worst;
    else f->found++;
    if (at < f->found - 1 && f->worth[at] >= worth) return;
    f->kind[at] = kind, f->worth[at] = worth;
    for (int64_t j = 0; j < width; j++) {
        f->variant[at * width + j] = j < n ? variant[j] : -1;
        f->share_pct[at * width + j] = j < n ? pct[j] : 0;
    }
}

/* Where prices are to settle: lower ones for what these contents, judged last, serve, until they are worth a little less
 * than the goal; first for what they serve most of. Where that does not do the goal rises. */
static int settle(Search *s, int n, const int64_t *variant, double worth)
{
    double part[WHOLE], excess = worth - s->goal + s->effort->settles * s->effort->tolerance + TOLERANCE;
    if (!s->effort->settles || worth <= s->goal) return 0;
    for (int i = 0; i < n; i++) {
        int64_t work = s->p->workload[variant[i]], j = 0;
        while (s->p->workload[variant[j]] != work) j++;
        double own = share_of(s, work, s->one.granted_rps[i]);
        part[i] = 0, part[j] = part[j] + own < 1 ? part[j] + own : 1;
    }
    s->lowered++;
    for (int most = 0; excess > 0; part[most] = 0) {
        for (int i = 0; i < n; i++)
            if (part[i] > part[most]) most = i;
        if (!(part[most] > 0)) {
            s->goal = worth; /* it is not worth that for what it serves */
            break;
        }
        int64_t work = s->p->workload[variant[most]];
        double usd = excess / part[most], *pi = s->out->pi + work;
        excess = usd > *pi ? excess - *pi * part[most] : 0;
        *pi = usd > *pi ? 0 : *pi - usd;
        s->last[work] = s->lowered;
    }
    return 1;
}

/* The best batches of the members from one on. What is drawn beyond the limit costs nothing more, so either all of it is
 * paid for or as much as the limit. */
static void choose(Search *s, int at, double usd, double mib, double watt)
{
    const Problem *p = s->p;
    Freedom *f = s->freedom;
    double spare = p->limit_w[s->pool] - p->idle_w[s->pool], each = s->prices->watt[s->pool];
    double paid = usd - each * watt + f->net[at], limited = usd + f->most[at] - each * (spare > 0 ? spare : 0);
    if ((paid > limited ? paid : limited) <= f->best || mib + f->least_mib[at] > p->room_mib[s->pool] + TOLERANCE) return;
    if (p->capped[s->pool] && watt > spare + TOLERANCE) return;
    if (!f->left--) f->best = f->most[0];
    if (at < f->n) {
        for (int64_t k = 0; k < f->count[at]; k++) {
            int64_t b = f->batch[at][k];
            f->part[at] = share_of(s, f->work[at], f->rate[at][b]);
            choose(s, at + 1, usd + f->usd[at][b], mib + f->mib[at][b], watt + f->watt[at][b]);
        }
        return;
    }
    usd -= s->prices->watt[s->pool] * (watt < spare ? watt : spare > 0 ? spare : 0);
    for (int i = 0; i < f->n; i++) {
        double others = 0, own = f->part[i];
        for (int j = 0; j < i; j++)
            if (f->work[j] == f->work[i]) others += f->part[j];
        if (others + own > 1) usd -= s->prices->pi[f->work[i]] * (others < 1 ? others + own - 1 : own);
    }
    if (usd > f->best) f->best = usd;
}

/* Ceilings hold for what contents are worth with whichever batches, not only with those that serve most. */
static void freely(Search *s, int64_t kind, int n, const int64_t *variant, const int64_t *pct)
{
    const Problem *p = s->p;
    Freedom *f = s->freedom;
    int64_t table = p->kind_table[kind] * p->variants;
    double pressure = 0;
    if (!rules_kept(p, s->pool, n, variant, pct)) return;
    for (int i = 0; i < n; i++) pressure += p->press[(table + variant[i]) * (WHOLE + 1) + pct[i]];
    f->n = n, f->left = CHOICES_MAX, f->best = (s->held > s->goal ? s->held : s->goal) + s->prices->fixed[s->pool];
    f->most[n] = f->net[n] = f->least_mib[n] = 0;
    for (int i = n - 1; i >= 0; i--) {
        int64_t cell = table + variant[i], work = f->work[i] = p->workload[variant[i]], count = 0;
        double most = NEVER, least = INFINITY, base = base_of(s, kind, variant[i], pct[i]), net[BATCHES_MAX];
        f->mib[i] = p->memory_mib + cell * p->batches;
        rates_at(s, cell, work, pct[i], n < 2 ? 1 : slowdown(p, cell, pressure, p->press[cell * (WHOLE + 1) + pct[i]]), f->rate[i]);
        for (int64_t b = 0; b < p->batches; b++) {
            if (!(f->rate[i][b] > 0)) continue;
            f->watt[i][b] = watts(p->power_w + cell * p->shares * p->batches + b, s->at[pct[i]], p->batches);
            f->usd[i][b] = base + gain_of(s, work, share_of(s, work, f->rate[i][b]));
            if (f->usd[i][b] > most) most = f->usd[i][b];
            if (f->mib[i][b] < least) least = f->mib[i][b];
            int64_t k = count++;
            for (net[b] = f->usd[i][b] - s->prices->watt[s->pool] * f->watt[i][b]; k && net[f->batch[i][k - 1]] < net[b]; k--) f->batch[i][k] = f->batch[i][k - 1];
            f->batch[i][k] = b;
        }
        f->count[i] = count, f->net[i] = f->net[i + 1] + (count ? net[f->batch[i][0]] : NEVER);
        f->most[i] = f->most[i + 1] + most, f->least_mib[i] = f->least_mib[i + 1] + least;
    }
    choose(s, 0, 0, 0, 0);
    s->out->work += CHOICES_MAX - f->left;
    s->held = f->best - s->prices->fixed[s->pool];
}

/* Judged and kept: whether prices are others now. */
static int try_contents(Search *s, int64_t kind, int n, int64_t *variant, int64_t *pct)
{
    double worth = really(s, kind, n, variant, pct);
    if (worth > NEVER) keep(s, kind, n, variant, pct, worth);
    return settle(s, n, variant, worth);
}

static int try_choice(Search *s, const Node *n, const Choice *c)
{
    int64_t variant[WHOLE + 1], pct[WHOLE + 1];
    if (!c->count || c->count > s->p->width) return 0;
    for (int i = 0; i < c->count; i++) variant[i] = c->chosen[i].variant, pct[i] = c->chosen[i].pct;
    return try_contents(s, n->kind, c->count, variant, pct);
}

/* ---- pricing: branch and bound ----------------------------------------------------------------------------------- */

static void push(Search *s, Node *n)
{
    if (s->nodes == s->nodes_room) s->open = realloc(s->open, sizeof(Node *) * (size_t)(s->nodes_room = 2 * s->nodes_room + 64));
    int64_t at = s->nodes++;
    for (; at && s->open[(at - 1) / 2]->ceiling < n->ceiling; at = (at - 1) / 2) s->open[at] = s->open[(at - 1) / 2];
    s->open[at] = n;
}

static Node *pop(Search *s)
{
    Node *top = s->open[0], *last = s->open[--s->nodes];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < s->nodes; at = child) {
        if (child + 1 < s->nodes && s->open[child + 1]->ceiling > s->open[child]->ceiling) child++;
        if (s->open[child]->ceiling <= last->ceiling) break;
        s->open[at] = s->open[child];
    }
    s->open[at] = last;
    return top;
}

static void drop(Node *n)
{
    free(n->options);
    free(n);
}

static Node *copy_of(const Node *n)
{
    Node *made = malloc(sizeof(Node));
    *made = *n;
    made->options = malloc(sizeof(Option) * (size_t)(n->count + 1));
    memcpy(made->options, n->options, sizeof(Option) * (size_t)n->count);
    return made;
}

/* Multipliers towards a ceiling at the goal, along what the choice has too much or too little of. */
static void move(Search *s, Node *n, const Choice *c, double ceiling, double *spare)
{
    double scale[RESOURCES] = {s->tables->highest[n->kind], s->p->room_mib[s->pool] + 1, s->p->room_mib[s->pool] + 1, spare_w(s) + 1}, norm = 0;
    spare[0] = n->high, spare[1] = s->p->room_mib[s->pool] + TOLERANCE, spare[2] = -spare[1], spare[3] = spare_w(s);
    for (int i = 0; i < c->count; i++) {
        const Option *o = &c->chosen[i];
        spare[0] -= o->press, spare[1] -= o->memory, spare[2] += o->lacking, spare[3] -= o->watt;
    }
    for (int r = 0; r < RESOURCES; r++) {
        double part = spare[r] / scale[r];
        if ((n->usd[r] > 0 || part < 0) && (r == 3 ? s->p->capped[s->pool] : (r < 1 || n->tight) && (r < 2 || n->tight > 1))) norm += part * part;
        else scale[r] = 0;
    }
    if (norm < 1e-18) return;
    for (int r = 0; r < RESOURCES; r++) {
        if (scale[r] <= 0) continue;
        double to = n->usd[r] - (ceiling - s->goal + 0.5 * s->effort->tolerance) * spare[r] / (scale[r] * scale[r] * norm);
        n->usd[r] = to > 0 ? to : 0;
    }
}

/* Whether one of a workload's options comes before another, by share. */
static int before(const Option *one, const Option *other)
{
    return one->pct < other->pct || (one->pct == other->pct && one->variant < other->variant);
}

/* The node with or without a workload; or, of its options, with those up to one, or with those above. */
static Node *part_of(const Search *s, const Node *n, int32_t work, const Option *to, int with)
{
    Node *made = copy_of(n);
    made->count = 0;
    for (int32_t i = 0; i < n->count; i++) {
        const Option *o = &n->options[i];
        if (o->work == work && (to ? before(to, o) == with : !with)) continue;
        if (!to && with && conflict(s->p, work % s->p->workloads, o->work % s->p->workloads)) continue;
        made->options[made->count++] = *o;
    }
    if (!to && with) made->must[made->musts++] = work;
    return made;
}

static int wide(const Search *s, const Node *n)
{
    return n->high - n->low > s->tables->highest[n->kind] / WIDE;
}

static void halve(Search *s, Node *n)
{
    Node *upper = copy_of(n), *lower = copy_of(n);
    lower->high = upper->low = (n->low + n->high) / 2;
    for (int32_t i = 0; i < n->count && n->tight < 2; i++) {
        weigh(s, upper, &upper->options[i], upper->low, upper->high);
        if (n->options[i].loose) weigh(s, lower, &lower->options[i], lower->low, lower->high);
    }
    push(s, lower);
    push(s, upper);
}

/* What a choice's replicas of a workload serve together, as if it were served once more than asked where it is. */
static double served_of(const Search *s, const Choice *c, int64_t work)
{
    double usd = 0, pi = s->prices->pi[work];
    for (int i = 0; i < c->count; i++) {
        const Option *o = &c->chosen[i];
        if (o->work % s->p->workloads == work) usd += o->worth - o->bare;
    }
    return pi > 0 ? usd / pi : 0;
}

/* In two: by pressure where that is what makes the choice look good, else by one of its workloads. */
static void cut(Search *s, Node *n, const Choice *c)
{
    const Problem *p = s->p;
    /* One workload less changes nothing where there are many like it. */
    double lost = n->count > MANY ? n->usd[0] * (n->high - n->low) : 0;
    for (int i = 0; i < c->count; i++) {
        Option below = c->chosen[i], above = below;
        weigh(s, n, &below, n->low, n->low);
        weigh(s, n, &above, n->high, n->high);
        lost += below.worth - above.worth < below.worth ? below.worth - above.worth : below.worth;
    }
    if (n->high - n->low > NARROW * s->tables->highest[n->kind] && (wide(s, n) || lost > 0.5 * (n->ceiling - s->goal))) {
        halve(s, n);
        return;
    }
    for (int i = 0; i < c->count; i++) {
        const Option *o = &c->chosen[i];
        if (o->work < p->workloads || in(n->once, n->onces, o->work % p->workloads) || served_of(s, c, o->work % p->workloads) <= 1) continue;
        if (in(n->must, n->musts, o->work)) {
            n->once[n->onces++] = o->work % p->workloads;
            push(s, copy_of(n));
        } else {
            push(s, part_of(s, n, o->work, NULL, 0));
            push(s, part_of(s, n, o->work, NULL, 1));
        }
        return;
    }
    const Option *pick = NULL, *split = NULL, *end = n->options + n->count;
    for (int i = 0; i < c->count; i++) {
        const Option *o = &c->chosen[i];
        int foes = 0, needed = in(n->must, n->musts, o->work);
        for (int j = 0; j < c->count && !needed; j++)
            foes |= conflict(p, o->work % p->workloads, c->chosen[j].work % p->workloads);
        if (!needed && (!pick || foes || o->pct > pick->pct)) pick = o;
        if (foes) break;
        for (const Option *other = n->options; needed && other < end; other++) {
            if (other->work != o->work || (other->pct == o->pct && other->variant == o->variant)) continue;
            /* Up to the one that is chosen, or up to the one before it where it is the last. */
            if (before(o, other)) split = o;
            else if (!split || split->work != o->work || before(split, other)) split = other;
            if (split == o) break;
        }
    }
    for (const Option *o = n->options; !pick && !split && o < end; o++)
        if (!in(n->must, n->musts, o->work)) pick = o;
    if (pick && n->musts < WHOLE) split = NULL;
    else if (split) pick = split;
    else {
        /* One content is left, and was judged. */
        int64_t variant[WHOLE], pct[WHOLE];
        for (int i = 0; i < c->count; i++) variant[i] = c->chosen[i].variant, pct[i] = c->chosen[i].pct;
        freely(s, n->kind, c->count, variant, pct);
        return;
    }
    push(s, part_of(s, n, pick->work, split, 0));
    push(s, part_of(s, n, pick->work, split, 1));
}

/* What is there once the workloads of the best are taken, and again. */
static void repeat(Search *s, Node *n, const Choice *first)
{
    Choice choice = *first;
    for (int64_t turn = 0; turn < s->effort->repeats && choice.count; turn++) {
        for (int i = 0; i < choice.count; i++) s->barred[choice.chosen[i].work % s->p->workloads] = 1;
        knapsack(s, n, &choice);
        try_choice(s, n, &choice);
    }
    memset(s->barred, 0, (size_t)s->p->workloads);
}

/* What is worth less since. */
static void weigh_anew(Search *s, Node *n)
{
    for (int32_t i = 0; i < n->count && n->lowered < s->lowered; i++)
        if (s->last[n->options[i].work % s->p->workloads] > n->lowered) weigh(s, n, &n->options[i], n->low, n->high);
    n->lowered = s->lowered;
}

static int late(const Effort *effort)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec >= effort->until_s;
}

static void expand(Search *s, Node *n)
{
    Choice choice = {0};
    double usd[RESOURCES], spare[RESOURCES], before[RESOURCES], found = s->best;
    memcpy(usd, n->usd, sizeof usd);
    int turns = n->count > MANY && wide(s, n) ? 1 : TURNS;
    for (int turn = 0; turn < turns; turn++) {
        weigh_anew(s, n);
        reduce(s, n);
        knapsack(s, n, &choice);
        if (choice.count > s->p->clients[s->pool] && !n->counted) {
            n->counted = 1;
            knapsack(s, n, &choice);
        }
        double ceiling = choice.value > NEVER / 2 ? choice.value + constant(s, n) : NEVER;
        if (ceiling < n->ceiling) n->ceiling = ceiling, memcpy(usd, n->usd, sizeof usd);
        if (try_choice(s, n, &choice) && s->out->work < s->effort->work && !late(s->effort)) {
            turn--;
            continue;
        }
        if (choice.value > NEVER / 2) prune(s, n, &choice);
        if (n->ceiling <= s->goal || !n->count) break;
        memcpy(before, n->usd, sizeof before);
        if (turn < turns - 1) move(s, n, &choice, ceiling, spare);
        if (!memcmp(before, n->usd, sizeof before)) break;
    }
    if (!s->effort->settles && s->best > found && s->best >= s->effort->least) repeat(s, n, &choice);
    if (n->ceiling > s->goal && n->count) {
        memcpy(n->usd, usd, sizeof usd);
        cut(s, n, &choice);
    }
    drop(n);
}

/* Whether the fastest batches of as many as there may be can need more memory than there is. */
static int32_t may_lack(const Search *s, const Node *n)
{
    int64_t clients = s->p->clients[s->pool], each = s->units * s->effort->step / s->tables->least;
    double most[WHOLE + 1] = {0}, total = 0, mib = 0;
    for (int32_t i = 0; i < n->count; i++) {
        if (n->options[i].lacking > mib) mib = n->options[i].lacking;
        if (i + 1 < n->count && n->options[i + 1].work == n->options[i].work) continue;
        double put = mib;
        for (int64_t k = 0; k < clients && k < each && k < WHOLE; k++)
            if (put > most[k]) {
                double other = most[k];
                most[k] = put, put = other;
            }
        mib = 0;
    }
    for (int64_t k = 0; k < WHOLE; k++) total += most[k];
    return total > s->p->room_mib[s->pool];
}

/* One replica by itself is judged where it may be worth it. */
static void alone(Search *s, int64_t kind, int64_t variant, int64_t pct, int64_t cell)
{
    int64_t one[2] = {variant, -1}, share[2] = {pct, 0};
    int64_t work = s->p->workload[variant];
    double most = base_of(s, kind, variant, pct) + gain_of(s, work, share_of(s, work, s->tables->alone_rps[cell]));
    if (most - drawn(s, pct, s->tables->least_w[cell]) - s->prices->fixed[s->pool] <= s->goal) return;
    try_contents(s, kind, 1, one, share);
    freely(s, kind, 1, one, share);
}

/* Everything one replica may be on devices of a kind: singles are judged where they may be worth it, what may stand
 * beside others becomes an option; from those a node, and where memory may lack another one for what that costs. */
static void begin(Search *s, int64_t kind)
{
    const Problem *p = s->p;
    const Tables *y = s->tables;
    int64_t table = p->kind_table[kind], clients = p->clients[s->pool], room = 0;
    Node *n = calloc(1, sizeof(Node));
    n->kind = (int32_t)kind, n->high = y->highest[kind], n->ceiling = INFINITY, n->tight = 1;
    for (int64_t first = 0, last; first < p->variants; first = last) {
        int64_t work = p->workload[y->order[first]];
        for (last = first; last < p->variants && p->workload[y->order[last]] == work;) last++;
        for (int64_t copy = 0; copy < p->per_device[work] && copy < clients; copy++)
            for (int64_t pct = s->effort->step, next; pct <= WHOLE; pct = next) {
                next = pct < WHOLE && pct + s->effort->step > WHOLE ? WHOLE : pct + s->effort->step;
                for (int64_t at = first; at < last && pct >= y->least; at++) {
                    int64_t variant = y->order[at], cell = (table * p->variants + variant) * (WHOLE + 1) + pct;
                    if (!p->allowed[s->pool * p->variants + variant] || !(y->alone_rps[cell] > 0)) continue;
                    if (!copy) alone(s, kind, variant, pct, cell);
                    /* Beside all of a device there is nobody, whatever the step. */
                    if (clients < 2 || p->dedicated[work] || pct % s->effort->step || !(y->beside_rps[cell] > 0)) continue;
                    double part = share_of(s, work, y->beside_rps[cell]), worth = base_of(s, kind, variant, pct) + gain_of(s, work, part);
                    worth -= drawn(s, pct, y->least_w[cell]);
                    if (part * (double)(copy + 1) > 1) worth -= s->prices->pi[work] * (part - 1 / (double)(copy + 1));
                    if (worth <= 0) continue;
                    if (n->count == room) n->options = realloc(n->options, sizeof(Option) * (size_t)(room = 2 * room + 1024));
                    n->options[n->count++] = (Option){.work = (int32_t)(work + copy * p->workloads), .variant = (int32_t)variant,
                        .pct = (int32_t)pct, .press = p->press[cell], .worth = worth};
                }
            }
    }
    s->out->work += p->variants * (WHOLE / s->effort->step);
    Choice choice = {0};
    reduce(s, n);
    knapsack(s, n, &choice);
    n->ceiling = choice.value + constant(s, n);
    prune(s, n, &choice);
    for (int32_t i = 0; i < n->count; i++) weigh(s, n, &n->options[i], 0, n->high);
    n->tight = may_lack(s, n);
    if (n->tight) {
        Node *lacking = copy_of(n);
        lacking->tight = 2;
        push(s, lacking);
    }
    push(s, n);
}

void price(const Problem *p, const Tables *tables, const Prices *prices, const Effort *effort, int64_t pool, Found *out)
{
    int64_t column[WHOLE];
    double numbers[6][WHOLE];
    uint8_t lawful;
    Search s = {.p = p, .tables = tables, .effort = effort, .out = out, .pool = pool, .best = NEVER, .held = NEVER,
        .units = WHOLE / effort->step, .goal = effort->floor + effort->tolerance,
        .one = {&lawful, column, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]}};
    for (int64_t pct = 0; pct <= WHOLE; pct++) s.at[pct] = place(p, pct);
    s.now = *prices, s.now.pi = out->pi, s.prices = &s.now, s.last = calloc((size_t)p->workloads + 1, sizeof(int64_t));
    s.barred = calloc((size_t)p->workloads + 1, 1), s.freedom = malloc(sizeof(Freedom));
    out->work = out->found = 0;
    for (int64_t kind = 0; kind < p->kinds; kind++)
        if (p->kind_pool[kind] == pool) begin(&s, kind);
    while (s.nodes && s.open[0]->ceiling > s.goal && out->work < effort->work && !late(effort)) expand(&s, pop(&s));
    out->ceiling = s.nodes && s.open[0]->ceiling > s.goal ? s.open[0]->ceiling : s.goal;
    if (s.held > out->ceiling) out->ceiling = s.held;
    while (s.nodes) drop(s.open[--s.nodes]);
    free(s.open), free(s.table), free(s.layers), free(s.stairs), free(s.barred), free(s.freedom), free(s.last);
}

/* Fills in what no prices change. */
void prepare(const Problem *p, const Tables *tables)
{
    Between at[WHOLE + 1];
    for (int64_t pct = 0; pct <= WHOLE; pct++) at[pct] = place(p, pct);
    for (int64_t cell = 0; cell < p->tables * p->variants; cell++) {
        int64_t work = p->workload[cell % p->variants], corner = cell * p->shares * p->batches;
        for (int64_t i = corner; i < corner + p->shares * p->batches; i++) {
            tables->speed[i] = !isfinite(p->mean_ms[i]) ? 0 : p->mean_ms[i] > 1 / HUGE_RATE ? 1 / p->mean_ms[i] : HUGE_RATE;
            tables->pace[i] = !isfinite(p->tail_ms[i]) ? 0 : p->tail_ms[i] > 1 / HUGE_RATE ? 1 / p->tail_ms[i] : HUGE_RATE;
        }
        for (int64_t pct = 0; pct <= WHOLE; pct++) {
            double alone = 0, beside = 0, least = INFINITY, unused;
            for (int64_t b = 0; b < p->batches && at[pct].low >= 0; b++) {
                double mean = latency(p->mean_ms + corner + b, at[pct], p->batches), tail = mean, crowd = p->crowd[cell];
                if (p->tail_ms != p->mean_ms) tail = latency(p->tail_ms + corner + b, at[pct], p->batches);
                double one = granted(p, work, p->batch[b], mean, tail, 2 * TOLERANCE, &unused);
                double more = granted(p, work, p->batch[b], mean * crowd, tail * crowd, 2 * TOLERANCE, &unused);
                double watt = watts(p->power_w + corner + b, at[pct], p->batches);
                if (one > alone) alone = one;
                if (more > beside) beside = more;
                if ((one > 0 || more > 0) && watt < least) least = watt;
            }
            tables->alone_rps[cell * (WHOLE + 1) + pct] = alone;
            tables->beside_rps[cell * (WHOLE + 1) + pct] = beside;
            tables->least_w[cell * (WHOLE + 1) + pct] = least;
        }
    }
}
