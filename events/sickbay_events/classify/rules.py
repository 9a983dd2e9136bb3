"""The general rules, as data: what codes, sentences and statuses mean wherever a relay passes them on.

A row says: if the answer carries one of these codes, and one of these sentences, then it is this kind. Codes
are compared in lower case. A sentence is a text in which all parts joined by ` & ` occur; ` | ` or a line end
parts alternatives. Order matters: the first row that fits decides. Sentences without codes are in sentences.py,
provider habits in habits/.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from ..kinds import Kind, ScopeName

Sentence: TypeAlias = tuple[str, ...]
"""Parts that must all occur in a text."""


class Rule(NamedTuple):
    """One row: a provider's habit, or everybody's."""

    kind: Kind
    codes: frozenset[str] = frozenset()
    """Any of these machine codes; empty: whatever the code."""
    says: tuple[Sentence, ...] = ()
    """Any of these sentences; each is a list of parts that must all occur; empty: whatever the words."""
    never: tuple[str, ...] = ()
    """Words that make the row somebody else's."""
    statuses: frozenset[int] = frozenset()
    """Only under these statuses; empty: any."""
    scope: ScopeName | None = None
    """The scope where it is not that of the kind."""
    weak: bool = False
    """Whether a vague word decided: confidence is low, and a foreign envelope makes it unknown."""


def rule(
    kind: Kind,
    codes: str = "",
    says: str = "",
    *,
    never: str = "",
    at: tuple[int, ...] = (),
    scope: ScopeName | None = None,
    weak: bool = False,
) -> Rule:
    """Write a row: codes separated by blanks, sentences by ` | ` or line ends, parts of a sentence by ` & `."""
    return Rule(
        kind=kind,
        codes=frozenset(codes.lower().split()),
        says=_sentences(says),
        never=tuple(word.strip() for line in never.splitlines() for word in line.split(" | ") if word.strip()),
        statuses=frozenset(at),
        scope=scope,
        weak=weak,
    )


def _sentences(text: str) -> tuple[Sentence, ...]:
    said = (one.strip() for line in text.splitlines() for one in line.split(" | "))
    return tuple(tuple(part.strip() for part in one.split(" & ")) for one in said if one)


MISSING: Final = "{model missing}"
"""Stands in a sentence for `models.says_missing`: the text says that a model does not exist."""

OTHER: Final = "{other resource missing}"
FEATURE_GONE: Final = "{feature gone}"
FORM: Final = "{form of the request}"
OVER_LIMIT: Final = "{asks over the limit}"
MODEL_ID: Final = "{model parameter refused}"
"""Stand likewise for the questions of subjects.py."""

THERE: Final = (
    "have access to model | be verified | subscription | currently unavailable | not support | new users | region"
    " | country | for this account | for this request | not allowed by | organization policy | not approved for"
    " | chat model | account | plan | tier | maintenance | insufficient | during routing | for this task"
)
"""Words by which a model is there, though a code or a phrase says otherwise: the general rows know which kind it is."""

CODES: Final[tuple[Rule, ...]] = (
    # A code that names its cause. Rows with a sentence stand before the row of the bare code.
    # A code about the model beside words about its present load, or about something that it cannot do: it is there.
    rule(
        "overloaded",
        "model_not_available model_unavailable model_not_found model_not_supported",
        "currently unavailable | temporarily unavailable | overloaded | at capacity | over capacity | currently loading"
        " | is loading | still loading | not ready | right now | at the moment | warming up",
        never="does not exist | no longer",
    ),
    rule(
        "wrong_endpoint",
        "model_not_supported unsupported_model invalid_model modelnotsupported model_not_found model_not_available",
        "for this request | on /v1/ | in the v1/ | in v1/ | this endpoint | this route | transcription"
        " | support embedding | support chat | support completion | support & /v1/ | not a chat model"
        " | support & endpoint | this api | for format | cannot be used with | can only be used with"
        " | not supported & completions api | not supported & responses api | compatibility mode | compatible mode"
        " | compatible endpoint | compatible api",
        never="does not exist",
    ),
    rule(
        "bad_request",
        "model_not_supported unsupported_model invalid_model modelnotsupported model_not_available",
        "does not support | doesn't support | not support the",
        never="does not exist | no longer",
    ),
    rule("context_length", "rate_limit_exceeded", "request too large"),
    rule("quota", "access_terminated_error", "usage limit | billing cycle"),
    rule(
        "permission_model",
        "model_not_found model_not_supported model_not_available unsupported_model invalid_model",
        "not have access to | not allowed to access | cannot access | for this organization | not permitted"
        " | must be verified | on this account | for this account | for your account | on your plan | your plan"
        " | current plan | subscription plan | not included in | not enabled for | disabled for | data policy"
        " | subscription | not allowed by | not approved for | blocked by | by your organization | organization policy",
        never="does not exist",
    ),
    rule(
        "model_unavailable",
        "model_not_found modelnotfound model_not_exist model_not_exists model_does_not_exist invalid_model"
        " unknown_model"
        " no_such_model modelnotfounderror model_decommissioned model_deprecated model_retired model_not_available"
        " deploymentnotfound deployment_not_found invalid_model_id invalid_model_error unsupported_model"
        " model_not_supported modelnotsupported invalidendpointormodel.notfound unknownmodel model_not_exist_error"
        " model_offline model_archived model_removed modelnotexist invalid_model_name model_gone servicemodeldeprecated"
        " servicemodeldeprecating",
    ),
    rule(
        "permission_model",
        "model_permission_blocked_org model_permission_blocked_project key_model_access_denied team_model_access_denied"
        " user_model_access_denied org_model_access_denied project_model_access_denied model_access_denied"
        " model.accessdenied modelnotopen model_not_allowed invalidendpointormodel.modelidaccessdisabled"
        " model_not_enabled model_terms_required model_access_restricted model_forbidden model_not_activated"
        " model_blocked provider_blocked paid_model_auth_required model_auth_required model_login_required"
        " model_restricted modelaccessdenied no_model_access model_permission_denied accessdenied.unpurchased",
    ),
    # A text as long as a book is the prompt; an id or a name that is too long is a parameter.
    rule(
        "context_length", "string_above_max_length", "maximum length 1048576 | content' | output' | 'input' | prompt'"
    ),
    rule("bad_request", "string_above_max_length"),
    rule(
        "context_length",
        "context_length_exceeded context_window_exceeded tokens_limit_reached prompt_too_long"
        " tokens_too_long exceed_context_size_error outofcontexterror context_length_exceeded_error input_too_long"
        " contextwindowexceedederror max_context_length_exceeded token_limit_exceeded context_too_large"
        " prompt_tokens_exceeded input_length_exceeded model_max_prompt_tokens_exceeded context_limit_exceeded",
    ),
    rule(
        "content_filter",
        "content_filter content_policy_violation content_filtered content_filter_error datainspectionfailed"
        " data_inspection_failed sensitive_words_detected moderation_blocked moderation_error hooks_failed"
        " responsibleaipolicyviolation sensitivecontentdetected content_moderation_failed content_blocked"
        " guardrail_blocked guardrail_violation content_policy contentpolicyviolationerror"
        " invalidparameter.datainspection content_safety unsafe_content safety_violation prompt_blocked"
        " sensitive_check_error safety_check_failed cyber_policy_violation image_content_policy_violation"
        " input_moderation_failed"
        " content_flagged content_violation prohibited_content",
    ),
    rule(
        "quota",
        "insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_credits"
        " insufficient_balance insufficient_balance_error insufficient_user_quota pre_consume_token_quota_failed"
        " payment_required paymentrequired arrearage accountoverdueerror account_overdue exceeded_current_quota_error"
        " project_spend_limit_exceeded enforced_spend_limit_reached organization_spend_limit_exceeded budget_exceeded"
        " usage_limit_reached usage_limit_exceeded usagelimiterror creditserror out_of_credits credit_limit_exceeded"
        " prepaidbilloverdue postpaidbilloverdue allocationquota.freetieronly spend_limit_exceeded insufficient_funds"
        " monthly_limit_exceeded monthlylimiterror usage_not_included credit_balance_too_low negative_balance"
        " insufficientbalance insufficient_credit quota_exhausted quotaexhausted daily_limit_exceeded"
        " balance_insufficient"
        " servicequotaexceededexception servicequotaexceeded token_quota_reached not_enough_credits free_tier_exhausted"
        " commoditynotpurchased insufficient_account_balance not_enough_balance billing_required credits_exhausted"
        " openrouter_credits budget_blocked openrouter_key_limit budgetexceedederror resourceinsufficient",
    ),
    rule(
        "overloaded",
        "overloaded_error overloaded server_overloaded serveroverloaded engine_overloaded engine_overloaded_error"
        " model_not_ready modelnotreadyexception capacity_exceeded no_capacity queue_exceeded model_overloaded"
        " service_tier_capacity_exceeded modelunavailable no_available_workers server_busy model_loading"
        " modelloadingerror slow_down nocapacity service_overloaded system_overloaded serverbusy server_high_load"
        " model_capacity_exceeded no_healthy_upstream capacity_error no_available_channel over_capacity model_cooldown"
        " insufficient_capacity model_is_loading inflightbatchsizeexceeded modelserviceunavailable queue_full"
        " model_capacity_exhausted server_is_overloaded no_provider_available no_providers_available",
    ),
    rule(
        "rate_limited",
        "limit_burst_rate throttling.burstrate throttling.ratequota limit_requests max_organization_concurrency"
        " accountratelimitexceeded accountrpmratelimitexceeded accounttpmratelimitexceeded requestbursttoofast"
        " apiaccountrpmratelimitexceeded rate_limit_reached_error user_rate_limit_exceeded",
        scope="credential",
    ),
    rule(
        "rate_limited",
        "rate_limit_exceeded too_many_requests ratelimitreached ratelimitexceeded request_rate_limit_exceeded"
        " rpm_rate_limit_exceeded tpm_rate_limit_exceeded throttlingexception throttledexception throttling"
        " toomanyrequestsexception concurrency_limit_exceeded tokens_rate_limit_exceeded ratelimiterror"
        " modelaccountrpmratelimitexceeded modelaccounttpmratelimitexceeded modelaccountipmratelimitexceeded"
        " endpointrpmexceeded endpointtpmexceeded cluster_rate_limit_exceeded preemption_rate_limit_exceeded"
        " request_limit_exceeded token_limit_rate_exceeded requestlimitexceeded too_many_requests_error"
        " rate_limit_exceeded_error token_rate_limit_exceeded ratelimitexceeded.endpointrpmexceeded",
        never="spend limit | spending | monthly limit | credits | per day | per-day | queue | high traffic"
        " | capacity | overload"
        " | weekly | budget | balance | over its quota | daily",
    ),
    rule(
        "auth",
        "invalid_api_key invalidapikey api_key_invalid invalid_authentication invalid_authentication_error"
        " missing_api_key api_key_required no_api_key account_deactivated organization_restricted account_suspended"
        " invalid_token token_expired expired_token unsupported_country_region_territory ip_not_authorized"
        " incorrect_api_key access_terminated_error unrecognizedclientexception invalidsignatureexception"
        " expiredtokenexception missingauthenticationtokenexception missingauthenticationtoken incompletesignature"
        " incompletesignatureexception invalidclienttokenid signaturedoesnotmatch api_key_service_blocked"
        " service_disabled consumer_suspended consumer_invalid access_token_expired access_token_scope_insufficient"
        " credentials_missing api_key_http_referrer_blocked api_key_ip_address_blocked account_disabled"
        " api_key_android_app_blocked api_key_ios_app_blocked invalidaccountstatus invalid_iam_token invalid_appid"
        " api_key_not_found invalid_issuer mismatched_organization organization_disabled token_not_provided"
        " api_key_disabled api_key_expired invalid_credentials account_locked not_authorized_invalid_key_type"
        " unsupportedregion token_invalid iam_permission_denied expired_api_key user_blocked key_revoked"
        " invalid_auth_token invalid_access_token api_key_revoked token_revoked authorized_error expired_key"
        " notauthorizedexception",
    ),
    rule(
        "wrong_endpoint",
        "unknown_url url.not_found route_not_found operationnotsupported method_not_allowed invalid_url invalidurl"
        " method_not_supported unsupported_endpoint endpoint_not_found unknownoperationexception unsupported_api"
        " unsupported_api_for_model model_endpoint_mismatch apiversionnotsupported not_supported_endpoint",
    ),
    rule(
        "malformed_output",
        "json_validate_failed tool_use_failed model_output_error output_parse_failed invalid_tool_call"
        " structured_output_failed malformed_response invalid_response bad_response_body",
    ),
    rule(
        "timeout",
        "request_timeout requesttimeout gateway_timeout timeout_error modeltimeoutexception request_timed_out"
        " deadline_exceeded internalerror.timeout responsetimeout operation_timeout upstream_timeout timeout",
    ),
)

_REQUEST_CODES: Final = "invalid_request_error invalid_request bad_request badrequest validation_error invalid_argument"

WEAK_CODES: Final[tuple[Rule, ...]] = (
    # A code so vague that every sentence above goes before it.
    rule("bad_request", _REQUEST_CODES, FORM, at=(500, 502, 503, 529)),
    rule(
        "auth",
        "authentication_error authenticationerror unauthorized unauthenticated permission_error permission_denied"
        " permissiondenied accessdeniedexception accessdenied access_denied forbidden authorization_error"
        " authorizationerror insufficient_permissions permissions_error workspace.accessdenied app.accessdenied"
        " permissiondeniederror autherror auth_error no_permission",
        at=(400, 401, 403, 407, 500),
    ),
    rule(
        "overloaded",
        "service_unavailable service_unavailable_error serviceunavailableexception serviceunavailable unavailable"
        " serviceunavailableerror service_unavailable_exception temporarily_unavailable",
    ),
    rule(
        "rate_limited",
        "rate_limit_error rate_limit rate_limited resource_exhausted rate_limit_exceeded toomanyrequests"
        " too_many_requests quota_exceeded quotaexceeded ratelimitexceeded requests tokens limitexceededexception"
        " too_many_requests_error",
        at=(200, 400, 403, 429, 500, 503),
    ),
    rule("wrong_endpoint", "not_found_error not_found notfound notfounderror resource_not_found_error", at=(404,)),
    rule("context_length", "request_too_large request_entity_too_large payload_too_large", at=(413,)),
    rule(
        "server_error",
        "server_error internal_error internal_server_error internalservererror internalserverexception api_error"
        " internal bad_gateway upstream_error internalerror modelerrorexception modelstreamerrorexception apierror"
        " internalserviceerror internalfailure internal_server_exception provider_error systemerror"
        " bad_response_status_code do_request_failed service_error unknown_error upstream_connection_error"
        " apiconnectionerror modelservicefailed internal_service_error server_exception",
        at=(200, 424, 500, 502, 503, 504, 529),
    ),
    rule(
        "bad_request",
        "unsupported_parameter unsupported_value invalid_value missing_required_parameter unknown_parameter"
        " invalid_type"
        " extra_forbidden validation_error invalid_parameter_error invalidparameter invalid_argument badrequesterror"
        " invalid_request_error invalid_request bad_request badrequest validationexception missingparameter"
        " invalid_request_message_order invalid_base64 invalid_image invalid_image_url failed_precondition"
        " unprocessable_entity serializationexception invalid_prompt invalid_json param_error out_of_range"
        " validation request_validation_error invalid_function_parameters invalid_tool_schema",
        at=(200, 400, 404, 409, 413, 415, 422),
    ),
)

STATUS: Final[dict[int, tuple[Kind, bool]]] = {
    # What a status alone says, and whether that is worth little (then confidence is low).
    400: ("bad_request", True),
    401: ("auth", True),
    402: ("quota", False),
    403: ("auth", True),
    404: ("wrong_endpoint", True),
    405: ("wrong_endpoint", False),
    406: ("bad_request", False),
    408: ("timeout", False),
    409: ("bad_request", True),
    410: ("wrong_endpoint", True),
    411: ("bad_request", False),
    412: ("bad_request", True),
    413: ("context_length", True),
    414: ("bad_request", False),
    415: ("bad_request", False),
    416: ("bad_request", False),
    417: ("bad_request", True),
    422: ("bad_request", False),
    424: ("server_error", True),
    426: ("wrong_endpoint", True),
    428: ("bad_request", True),
    429: ("rate_limited", False),
    431: ("bad_request", False),
    451: ("auth", True),
    499: ("timeout", True),
    500: ("server_error", False),
    501: ("wrong_endpoint", True),
    502: ("server_error", False),
    503: ("overloaded", False),
    504: ("timeout", False),
    505: ("wrong_endpoint", True),
    507: ("server_error", True),
    520: ("server_error", False),
    521: ("network", False),
    522: ("network", False),
    523: ("network", False),
    524: ("timeout", False),
    525: ("network", False),
    526: ("network", False),
    527: ("network", False),
    529: ("overloaded", False),
    530: ("network", False),
    598: ("timeout", False),
    599: ("timeout", False),
}

ERRORS: Final[dict[str, Kind]] = {
    # What the router's own transport saw instead of an answer.
    "connect": "network",
    "dns": "network",
    "tls": "network",
    "reset": "network",
    "timeout": "timeout",
    "aborted": "cancelled",
    # What other routers call the same.
    "connect_timeout": "network",
    "eof": "network",
    "closed": "network",
    "truncated": "truncated",
    "cancelled": "cancelled",
}
