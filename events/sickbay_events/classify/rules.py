"""The general rules, as data: what codes, sentences and statuses mean wherever a relay passes them on.

A row says: if the answer carries one of these codes, and one of these sentences, then it is this kind. Codes
are compared in lower case. A sentence is a text in which all parts joined by ` & ` occur; the alternatives of
a row are its lines. Order matters: the first row that fits decides. Provider habits are in habits.py.
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
    """Write a row: codes separated by blanks, sentences by line ends, parts of a sentence by ` & `."""
    return Rule(
        kind=kind,
        codes=frozenset(codes.lower().split()),
        says=_sentences(says),
        never=tuple(line.strip() for line in never.splitlines() if line.strip()),
        statuses=frozenset(at),
        scope=scope,
        weak=weak,
    )


def _sentences(text: str) -> tuple[Sentence, ...]:
    lines = (line.strip() for line in text.splitlines())
    return tuple(tuple(part.strip() for part in line.split(" & ")) for line in lines if line)


MISSING: Final = "{model missing}"
"""Stands in a sentence for `models.says_missing`: the text says that a model does not exist."""

CODES: Final[tuple[Rule, ...]] = (
    # A code that names its cause. Rows with a sentence stand before the row of the bare code.
    rule("wrong_endpoint", "model_not_supported", "for this request"),
    rule("context_length", "rate_limit_exceeded", "request too large"),
    rule("quota", "access_terminated_error", "usage limit\nbilling cycle"),
    rule("permission_model", "model_not_found", "not have access to\nnot allowed to access", never="does not exist"),
    rule(
        "model_unavailable",
        "model_not_found modelnotfound model_not_exist model_not_exists model_does_not_exist invalid_model unknown_model"
        " no_such_model modelnotfounderror model_decommissioned model_deprecated model_retired model_not_available"
        " deploymentnotfound deployment_not_found invalid_model_id invalid_model_error unsupported_model"
        " model_not_supported modelnotsupported invalidendpointormodel.notfound unknownmodel model_not_exist_error"
        " model_offline model_removed modelnotexist invalid_model_name model_gone",
    ),
    rule(
        "permission_model",
        "model_permission_blocked_org model_permission_blocked_project key_model_access_denied team_model_access_denied"
        " user_model_access_denied org_model_access_denied project_model_access_denied model_access_denied"
        " model.accessdenied modelnotopen model_not_allowed invalidendpointormodel.modelidaccessdisabled"
        " model_not_enabled model_terms_required model_access_restricted model_forbidden model_not_activated"
        " model_restricted modelaccessdenied no_model_access model_permission_denied accessdenied.unpurchased",
    ),
    rule(
        "context_length",
        "context_length_exceeded context_window_exceeded string_above_max_length tokens_limit_reached prompt_too_long"
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
        " sensitive_check_error cyber_policy_violation image_content_policy_violation input_moderation_failed"
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
        " insufficientbalance insufficient_credit quota_exhausted quotaexhausted daily_limit_exceeded balance_insufficient"
        " servicequotaexceededexception servicequotaexceeded token_quota_reached not_enough_credits free_tier_exhausted"
        " commoditynotpurchased insufficient_account_balance not_enough_balance billing_required credits_exhausted"
        " openrouter_credits openrouter_key_limit budgetexceedederror resourceinsufficient",
    ),
    rule(
        "overloaded",
        "overloaded_error overloaded server_overloaded serveroverloaded engine_overloaded engine_overloaded_error"
        " model_not_ready modelnotreadyexception capacity_exceeded no_capacity queue_exceeded model_overloaded"
        " service_tier_capacity_exceeded modelunavailable no_available_workers server_busy model_loading"
        " modelloadingerror slow_down nocapacity service_overloaded system_overloaded serverbusy server_high_load"
        " model_capacity_exceeded no_healthy_upstream capacity_error no_available_channel over_capacity"
        " insufficient_capacity model_is_loading inflightbatchsizeexceeded modelserviceunavailable queue_full",
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
        never="spend limit\nspending\nmonthly limit\ncredits\nper day\nper-day\nqueue\nhigh traffic\ncapacity\noverload"
        "\nweekly\nbudget\nbalance\nover its quota\ndaily",
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

SENTENCES: Final[tuple[Rule, ...]] = (
    # What an answer says where its code is silent or vague.
    rule("bad_request", says="model=none\ncachedcontent\nno endpoints found that support"),
    rule("rate_limited", says="perminute", never="perday"),
    rule("quota", says="perday & permodel\nbudget for deployment", scope="model"),
    rule("quota", says="perday"),
    rule("rate_limited", says="userbyminute\ntrial key & minute", scope="credential"),
    rule(
        "quota",
        says="""
        monthly spend limit
        daily spend limit
        spending cap
        spend cap
        crossed budget & exceeded budget for deployment""",
    ),
    rule(
        "overloaded",
        says="""
        no deployments available & cooldown
        upstream & overloaded
        shared & capacity
        system capacity limits""",
    ),
    rule(
        "rate_limited",
        says="""
        organization's rate limit
        organization max
        organization rate limit
        reached user max
        your account & per minute
        your account & rate limit
        account's rate limit
        account rate limit
        api key rate limit
        rate limit & this api key
        rate limit & your api key
        rate limit for creating""",
        never="spend limit\nper day\nhigh traffic\nfor model\nfor the model",
        scope="credential",
    ),
    rule("context_length", says="request too large for & tokens per min\nrequest too large for & tpm"),
    rule(
        "rate_limited",
        says="""
        rate limit reached
        requests per min
        tokens per min
        requests per second
        request rate
        token rate limit
        per-minute
        /min
        max rpm
        max tpm
        (rpm)
        (tpm)
        concurrency limit
        concurrent request
        too many concurrent
        too many requests per
        请求过于频繁
        速率限制
        并发
        限流""",
        never="does not exist",
    ),
    rule(
        "context_length",
        says="""
        context length
        context_length
        context window
        context size
        context limit
        maximum context
        max context
        context the overflows
        prompt is too long
        prompt too long
        prompt tokens too long
        input is too long
        input too long
        input length & exceed
        input length & maximum
        input token count
        input tokens exceed
        input_tokens & exceed
        too many input tokens
        too many tokens & prompt
        maximum prompt length
        max_seq_len
        max_total_tokens
        max_new_tokens & must be <=
        max_model_len
        max input tokens
        maximum input tokens
        maximum allowed length
        length of prompt
        prompt_tokens & must be
        reduce the length
        range of input length
        maximum number of tokens allowed
        request body too large for
        inputs must have less than
        exceeds the available context
        exceed context size
        longer than the maximum
        longest input & exceed
        number of input tokens
        token limit & prompt
        prompt & exceed & token limit
        exceeded model token limit
        prompt contains & tokens & exceed
        tokens & exceed & model's maximum
        too large for model with
        上下文长度
        输入长度
        超过最大长度
        超出最大长度
        最大输入""",
        never="per minute\nper min\nper day\nper hour\ntpm\nrate limit\nloading\ncannot be greater than max_model_len",
    ),
    rule(
        "content_filter",
        says="""
        content management policy
        content policy
        content_policy
        content filter
        contentpolicyviolation
        content exists risk
        content security
        moderation
        safety system
        safety filter
        safety guideline
        safety check
        usage policy
        usage policies
        violat & polic
        was flagged
        been flagged
        considered high risk
        sensitive word
        sensitive content
        sensitive information
        new_sensitive
        inappropriate content
        prohibited content
        harmful content
        unsafe content
        guardrail
        data inspection
        content restrictions
        blocked by & safety
        敏感
        不安全
        违规内容
        内容安全
        风控
        不当内容""",
        never="your account\nyour organization has\nsuspended\ndeactivated\nyour access\nviolates our terms",
    ),
    rule(
        "quota",
        says="""
        requires paid balance
        quota for this model
        free quota of this model
        free tier of the model
        allowance for this model""",
        never="per minute",
        scope="model",
    ),
    rule(
        "quota",
        says="""
        insufficient balance
        insufficient credit
        insufficient fund
        insufficient account
        insufficient quota
        insufficient account balance
        balance is insufficient
        balance is too low
        balance not enough
        balance is not enough
        not enough balance
        not enough credit
        negative balance
        zero balance
        out of credit
        run out of credit
        no credits
        credits remaining
        any credits
        credit balance
        credits expired
        credits have been exhausted
        credits exhausted
        used all available credits
        used up & credits
        more credits
        add credits
        purchase credits
        buy credits
        exceeded your monthly included
        credit limit
        credits limit
        depleted
        spend limit
        spending limit
        monthly limit
        monthly usage limit
        weekly usage limit
        weekly limit
        usage limit reached
        usage limit for
        usage limit exceeded
        hit your usage limit
        reached your usage limit
        session usage limit
        5-hour & limit
        5 hour & limit
        daily free allocation
        daily allocation
        daily quota
        daily limit
        monthly quota
        hard limit
        over budget
        budget has been exceeded
        exceeded budget
        exceeded & budget
        budget exceeded
        exceeded your current quota
        exceeded current quota
        quota has been exhausted
        quota exhausted
        quota is exhausted
        quota is not enough
        quota exceeded & billing
        free quota
        free allocated quota
        free tier & exhausted
        free trial & ended
        trial & expired
        payment required
        payment method
        past due
        overdue
        unpaid
        arrear
        in good standing
        billing issue
        billing is not active
        billing to be enabled
        requires billing
        enable billing
        active subscription
        subscription has expired
        subscription expired
        top up
        please recharge
        insufficient_quota
        余额不足
        余额已
        欠费
        额度不足
        额度已
        额度用
        配额已
        请充值
        资源包
        套餐已""",
        never="per minute\ndoes not exist\ninvalid",
    ),
    rule(
        "permission_model",
        says="""
        not authorized to access model
        not authorized to access this model
        not authorized to use model
        not authorized to use this model
        not allowed to access model
        not allowed to access this model
        not allowed to use model
        not allowed to call model
        key not allowed & model
        team not allowed & model
        user not allowed & model
        can only access models
        no access to model
        no longer available to new
        marked by provider as legacy
        no allowed providers
        access to model & restricted
        in the authorized list
        no access to this model
        no permission to use the model
        no permission to access model
        permission to access model
        permission to use model
        permission to use the model
        access to model denied
        access to model is
        access to this model
        access to the model with the specified
        model access denied
        model access is denied
        model is blocked
        model & is blocked at
        models & blocked
        model blocked
        request access & model
        be verified to use the model
        be verified to use this model
        be verified to stream
        must be verified
        plan does not include
        plan doesn't include
        not included in your & plan
        not available in your & plan
        not available on your & plan
        not available for your plan
        not available on the free
        model is only available
        not available in your region
        is not available in region
        not activated the model
        model & not been activated
        model & agree
        agree to the & model
        model & accept & terms
        accept the terms & model
        gated
        model use case details
        requires a & plan & model
        requires a & tier & model
        requiring a key to access this model
        upgrade & to access & model
        upgrade & to use & model
        require & subscription & model
        requires a subscription
        model & not enabled for
        model is disabled for
        model is not allowed
        model not allowed
        model is restricted
        data policy
        not have access to this model
        not have access to the model
        not have access to model
        does not have access to & model
        未开通
        无权访问
        没有权限访问模型
        实名认证
        无权限使用
        没有访问模型
        套餐不包含""",
        never="does not exist or\nnot found, make\nnot found or\nis not found for\ncurrently loading",
    ),
    rule(
        "wrong_endpoint",
        says="""
        unknown request url
        invalid url
        page not found
        method not allowed
        cannot post /
        cannot get /
        no route matched
        no matching route
        route not found
        unknown route
        no static resource
        no handler found
        no such endpoint
        unknown endpoint
        unexpected endpoint
        endpoint not found
        unsupported endpoint
        check the url
        requested url & not found
        requested resource was not found
        not a chat model
        not a completion model
        did you mean to use v1/
        not supported in the v1/
        only supported in v1/
        only supported in the
        supported by the responses api
        use the responses api
        use v1/responses
        via the /v1/
        does not work with the specified model
        not support & chat completion
        not support the chat
        does not support chat
        does not support generate
        does not support completion
        does not support embedding
        not support embeddings
        not an embedding model
        not support the responses
        not accessible via the
        api version not supported
        unsupported api version
        configure ai gateway
        接口不存在
        请求地址错误""",
    ),
    rule(
        "overloaded",
        says="""
        overloaded
        over capacity
        at capacity
        capacity exceeded
        capacity temporarily exceeded
        capacity constraint
        out of capacity
        no capacity
        insufficient capacity
        exceeded capacity
        too busy
        server is busy
        server busy
        system is busy
        service is busy
        high traffic
        high demand
        high load
        heavy load
        heavy traffic
        currently loading
        is loading
        model is starting
        model is cold
        cold start
        scaled to zero
        scaling up
        warming up
        being warmed
        starting up
        not ready
        is not ready yet
        initializing
        no available worker
        no healthy upstream
        no instances
        no workers
        queue full
        queue is full
        queue size
        maximum pending requests
        temporarily unavailable
        service unavailable
        currently unavailable
        service is unavailable
        is unavailable, try again
        service is sleeping
        currently experiencing
        degraded function
        engine is currently
        unable to serve
        no available capacity
        more data centers to forward
        max capacity
        负载
        访问量过大
        繁忙
        拥挤
        资源不足
        过载""",
        never="does not exist\napi key",
    ),
    rule("model_unavailable", says=f"{MISSING}\non-demand throughput isn't supported\ndedicated endpoint & not running"),
    rule(
        "malformed_output",
        says="""
        failed to generate json
        failed to call a function
        tool call validation failed
        failed_generation
        model produced invalid content
        failed to parse tool call
        invalid tool call generated
        could not parse & model's output
        model did not output valid
        model output & invalid
        unparsable & output""",
    ),
    rule(
        "rate_limited",
        says="""
        too many requests
        rate limit
        rate-limit
        ratelimit
        rate_limit
        request was throttled
        throttl
        exceeded the limit of requests
        requests limit
        slow down
        频率
        请求过多""",
        never="retry later if\nper day\ndoes not exist",
    ),
    rule(
        "timeout",
        says="""
        timed out
        timeout
        time out
        deadline expired
        deadline exceeded
        took too long
        超时""",
        never="timeout must\ninvalid timeout\ntimeout is not\n'timeout'\ntimeout parameter\nconnect timeout",
    ),
    rule(
        "auth",
        says="""
        invalid api key
        invalid api-key
        invalid_api_key
        invalid apikey
        incorrect api key
        wrong api key
        api key is invalid
        api key & invalid
        api key not valid
        api key not found
        api key expired
        api key is missing
        api key is required
        api key required
        api key has
        api key was
        key has expired
        key is expired
        key is disabled
        key has been
        invalid x-api-key
        invalid key
        invalid subscription key
        missing api key
        no api key
        provide an api key
        provide your api key
        provide a valid api
        pass a valid api
        must provide
        missing authentication
        missing authorization
        no authorization
        no auth credentials
        no cookie auth
        authentication fail
        authentication error
        authentication required
        authentication_error
        authenticationerror
        failed to authenticate
        could not authenticate
        not authenticated
        invalid auth
        invalid bearer
        invalid credential
        invalid token
        invalid api token
        invalid access token
        invalid username or password
        token is invalid
        token has expired
        token is expired
        token expired
        expired token
        security token
        authentication token
        authentication credential
        signature we calculated
        request signature
        login fail
        user not found
        account & suspended
        account & deactivated
        account & disabled
        account & restricted
        account & terminated
        account & banned
        account & not active
        organization & disabled
        organization & restricted
        organization & suspended
        consumer & suspended
        project & suspended
        location is not supported
        country, region, or territory
        country or region
        region is not supported
        ip address & not
        ip & whitelist
        access terminated
        has not been used in project
        api has not been
        unauthenticated
        incorrect api
        missing scopes
        insufficient permission
        valid credentials
        令牌
        身份验证
        鉴权
        密钥
        认证失败""",
        never="does not exist\nunknown model",
    ),
    rule(
        "bad_request",
        says="""
        is not supported with this model
        not supported for this model
        not supported on this model
        not supported by this model
        is not a multimodal model
        does not support tool
        does not support function
        does not support thinking
        does not support image
        does not support vision
        does not support stream
        does not support parameter
        does not support
        doesn't support
        input is not supported
        unsupported parameter
        unsupported value
        unrecognized request argument
        extra inputs are not permitted
        is a required property
        field required
        is required
        missing required
        validation error
        invalid request
        invalid parameter
        invalid json
        decode json
        parse json
        json parse
        end of json input
        not valid json
        invalid value
        unknown field
        unknown parameter
        must be one of
        must be greater
        must be less
        expected & but got
        could not parse the json
        json parse error
        参数错误
        参数有误
        参数不合法""",
        never="unable to reach",
    ),
    rule(
        "server_error",
        says="""
        internal server error
        internal error
        internal_error
        server had an error
        server error
        unexpected error
        something went wrong
        upstream error
        upstream request failed
        provider returned error
        bad gateway
        connection error
        connection refused
        connection reset
        unexpectedly stopped
        model has crashed
        model crashed
        out of memory
        cuda
        no response from
        内部错误
        服务异常
        系统异常
        服务器错误""",
        weak=True,
    ),
)

WEAK_CODES: Final[tuple[Rule, ...]] = (
    # A code so vague that every sentence above goes before it.
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
        "unsupported_parameter unsupported_value invalid_value missing_required_parameter unknown_parameter invalid_type"
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
}
