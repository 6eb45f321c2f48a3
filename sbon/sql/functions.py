"""Which of Spark's functions a continuous query may call: a closed world, so that nothing unknown slips through.

Two runs of a query must give the same rows however it is cut, moved and replayed. So a function has to depend on its
arguments alone, and an aggregate on the *set* of its rows, not on their order. Names as in Spark 4.3's SHOW FUNCTIONS.
"""

from __future__ import annotations

from sqlglot import TokenType, exp

from sbon.errors import QueryError
from sbon.sql.dialect import StreamingSpark, place, render
from sbon.sql.spelling import nearest


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SCALAR = _words(
    """
    abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp
    expm1 factorial floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power
    radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract unhex
    width_bucket bit_count bit_get getbit shiftleft shiftright shiftrightunsigned
    equal_null ilike isnan isnotnull isnull like regexp regexp_like rlike
    between coalesce if ifnull nanvl nullif nullifzero nvl nvl2 when zeroifnull case
    bigint binary boolean cast try_cast date decimal double float int smallint string timestamp tinyint
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
    datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day
    make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval
    minute month monthname months_between next_day quarter second timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp
    trunc try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_union arrays_overlap
    arrays_zip flatten get sequence slice sort_array cardinality concat element_at reverse size try_element_at
    map map_concat map_contains_key map_entries map_from_arrays map_from_entries map_keys map_values str_to_map
    named_struct struct
    ascii base64 bit_length btrim char char_length character_length chr concat_ws contains decode elt encode endswith
    find_in_set format_number format_string initcap instr lcase left len length levenshtein locate lower lpad ltrim
    luhn_check mask octet_length overlay position printf regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_replace regexp_substr repeat replace right rpad rtrim sentences soundex space split split_part startswith
    substr substring substring_index to_binary to_char to_number to_varchar translate trim try_to_binary try_to_number
    ucase unbase64 upper
    crc32 hash md5 sha sha1 sha2 xxhash64
    from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv schema_of_json to_csv to_json
    parse_url try_parse_url try_url_decode url_decode url_encode typeof
    xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
    """
)

AGGREGATE = _words(
    """
    approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count count_if covar_pop covar_samp every
    kurtosis max mean median min percentile regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance any
    """
)

_REASONS: dict[str, tuple[str, str]] = {}
for _names, _reason, _remedy in (
    (
        "rand randn random randstr uniform uuid shuffle monotonically_increasing_id",
        "is not deterministic: a replay would give other rows",
        "remove it, or derive the value from columns, as hash(...) does",
    ),
    (
        "now current_timestamp current_date current_time curdate localtimestamp localtime",
        "is not deterministic: it reads the clock",
        "use the stream's event time",
    ),
    (
        "input_file_name input_file_block_start input_file_block_length spark_partition_id version user current_user "
        "session_user current_catalog current_database current_schema current_path current_timezone reflect "
        "java_method try_reflect assert_true raise_error",
        "is not deterministic: it depends on where the operator runs",
        "remove it",
    ),
    (
        "first first_value last last_value any_value collect_list collect_set array_agg listagg string_agg mode max_by "
        "min_by percentile_approx approx_percentile histogram_numeric approx_top_k",
        "is not deterministic: it depends on the order in which rows arrive",
        "use min, max, count, sum, avg, percentile or the like",
    ),
    (
        "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple variant_explode",
        "makes rows out of one, which is not supported",
        "unnest before the stream enters, at its source",
    ),
    (
        "row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value",
        "needs OVER (...), which is not supported on streams",
        "use GROUP BY window(ts, '1 hour')",
    ),
    ("session_window", "is not supported", "use window(ts, '1 hour')"),
    ("window_time", "is not supported", "use window.end"),
    ("grouping grouping_id", "belongs to grouping sets, which are not supported", "group by plain keys"),
    ("aggregate exists filter forall map_filter map_zip_with reduce transform transform_keys transform_values zip_with "
     "array_sort", "takes a lambda, which is not supported", "compute it before the stream enters, at its source"),
):  # fmt: skip
    _REASONS.update(dict.fromkeys(_names.split(), (_reason, _remedy)))


def function_name(node: exp.Expr) -> str | None:
    """The function that Spark will call for this node, in lower case; None for operators and everything else."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    if not isinstance(node, exp.Func) or isinstance(node, (exp.Connector, exp.Case, exp.Cast)):
        return None
    # What counts is the name that is written, not the one that was read: sqlglot turns one into another.
    tokens = StreamingSpark().tokenize(render(node))
    if len(tokens) == 1:
        return tokens[0].text.lower()
    if len(tokens) < 3 or tokens[1].token_type is not TokenType.L_PAREN:
        return None
    depth = 0
    for position, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0 and position > 0:
            return tokens[0].text.lower() if position == len(tokens) - 1 else None
    return None


def is_aggregate(node: exp.Expr) -> bool:
    """Whether the node calls an aggregate function (a FILTER (WHERE ...) around it belongs to it)."""
    return isinstance(node, exp.Filter) or (isinstance(node, exp.Func) and function_name(node) in AGGREGATE)


def check_function(node: exp.Expr) -> None:
    """Refuse a function that is unknown or may not be used. ``window`` is left to the grouping."""
    name = function_name(node)
    if name is None or name == "window" or name in SCALAR or name in AGGREGATE:
        return
    if name in _REASONS:
        reason, remedy = _REASONS[name]
        raise QueryError(f"{name}(){place(node)} {reason}; {remedy}")
    known = SCALAR | AGGREGATE
    raise QueryError(f"function {name}(){place(node)} is not supported or not known{nearest(name, known)}")
