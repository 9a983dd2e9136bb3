"""The general sentences, as data: what an answer says where its code is silent or vague.

The first row that fits decides. ` | ` parts alternatives, ` & ` what must occur together; a sentence begins where a
word begins. Marks of the providers' own tongues stand beside the English ones.
"""

from __future__ import annotations

from typing import Final

from .rules import FEATURE_GONE, MISSING, MODEL_ID, OTHER, Rule, rule

SENTENCES: Final[tuple[Rule, ...]] = (
    rule("bad_request", says=OTHER, at=(400, 404, 410, 422)),
    rule("bad_request", says=FEATURE_GONE, at=(400, 404, 410, 422)),
    rule(
        "bad_request",
        says="""
        model=none | cachedcontent | no endpoints found that | no endpoints found & filter by tool
        be verified to generate | items are not persisted | previous response with id | no thread found
        no assistant found | no such file object | extra usage is required for | required for fast mode""",
    ),
    rule(
        # OpenRouter's words behind whatever relay: endpoints there were, the caller's own filters left none.
        "permission_model",
        says="endpoints & matching your data policy | endpoints & matching your guardrail | removed during routing",
    ),
    rule("quota", says="rate limited", at=(402,)),
    rule("permission_model", says="no endpoints found & filter by | with a chatgpt account"),
    rule(
        "rate_limited",
        says="""
        perminute | no deployments available & current_rpm | tokens_per_minute | requests_per_minute
        error-code#token-limit | limit_rpm""",
        never="perday",
    ),
    rule(
        "quota",
        says="perday & permodel | budget for deployment | limit_rpd/",
        scope="model",
    ),
    rule(
        "quota",
        says="perday",
    ),
    rule(
        "rate_limited",
        says="error code: 1015 | local_rate_limited | limit exceeded for api_key | limit exceeded for model_per_key",
        scope="credential",
    ),
    rule("auth", says="resource has been temporarily blocked | resource has been blocked | resource is blocked"),
    # A front server's own limit on waiting requests, in the words of a failed connection.
    rule("overloaded", says="reset reason: overflow"),
    rule(
        "network",
        says="upstream connect error | connect timeout | dns cache overflow | name resolution failed",
    ),
    rule("network", says="fetch failed", at=(500, 502, 503, 504, 520)),
    rule(
        "rate_limited",
        says="userbyminute | trial key & minute",
        scope="credential",
    ),
    rule(
        "quota",
        says="""
        specified api usage limits | you will regain access on | monthly spend limit | daily spend limit
        spending cap | spend cap
        crossed budget & exceeded budget for deployment""",
    ),
    rule(
        "overloaded",
        says="""
        no deployments available & cooldown | upstream & overloaded | shared & capacity
        system capacity limits""",
    ),
    rule(
        "rate_limited",
        says="""
        organization's rate limit | organization max | organization rate limit | reached user max | your rate limit is
        your account & per minute | your account & rate limit | account's rate limit | account rate limit
        api key rate limit | rate limit & this api key | rate limit & your api key
        rate limit for creating""",
        never="spend limit | per day | high traffic | for model | for the model | tpd rate limit",
        scope="credential",
    ),
    rule(
        "context_length",
        says="request too large for & tokens per min | request too large for & tpm",
    ),
    rule(
        "rate_limited",
        says="""
        rate limit reached | requests per min | tokens per min | requests per second | request rate
        token rate limit | per-minute | /minute | /min. | /min, | /min) | / min | max rpm | max tpm
        (rpm) | (tpm) | concurrency limit
        concurrent request | too many concurrent | too many requests per | 请求过于频繁 | 速率限制 | 并发 | 限流""",
        never="does not exist",
    ),
    rule(
        "context_length",
        says="""
        context length | context_length | context window | context size | context limit | maximum context
        max context | context the overflows | prompt is too long | prompt too long | prompt tokens too long
        must have less than & tokens | must have fewer than & tokens | must be less than & tokens
        input is too long | input too long | input token length too long | prompt exceeds max | prompt 超长
        input length & exceed | input length & maximum
        input token count
        input tokens exceed | input_tokens & exceed | too many input tokens | too many tokens & prompt
        maximum prompt length | max_seq_len | max_total_tokens | max_new_tokens & must be <= | max_model_len
        max input tokens | maximum input tokens | maximum allowed length | length of prompt
        prompt_tokens & must be | reduce the length | range of input length | maximum number of tokens allowed
        request body too large for | inputs must have less than | exceeds the available context
        context shift is disabled
        string too long & messages[ | string too long & input[ | prompt token count of & exceed
        request entity too large
        payload too large | request exceeds the maximum | request body exceeds | request is too large
        request size limit
        max tokens of & exceeded | input tokens + | text too long | text is too long | sequence too long
        exceed context size | longer than the maximum | longest input & exceed | number of input tokens
        token limit & prompt | prompt & exceed & token limit | exceeded model token limit
        size limit exceeded by & tokens | prompt contains & tokens & exceed
        tokens & exceed & model's maximum | too large for model with | 上下文长度
        输入长度 | 超过最大长度 | 超出最大长度 | 最大输入""",
        never="""
        per minute | per min | per day | per hour | tpm | rate limit | loading
        cannot be greater than max_model_len""",
    ),
    rule(
        "content_filter",
        says="""
        content management policy | content policy | content_policy | content filter | contentpolicyviolation
        content exists risk | content security | moderation | safety system | safety filter | safety guideline
        safety policy | safety check | violates usage guidelines
        usage policy | usage policies | violat & polic | was flagged
        been flagged
        considered high risk | prompt injection | sensitive word | sensitive content
        sensitive information | new_sensitive
        inappropriate content | prohibited content | harmful content | unsafe content | guardrail
        data inspection | content restrictions | blocked by & safety
        敏感 | 不安全 | 违规内容 | 内容安全 | 风控 | 不当内容""",
        never="""
        your account | your organization has | suspended | deactivated | your access | violates our terms | budget
        spend limit""",
    ),
    rule(
        "quota",
        says="""
        requires paid balance | quota for this model | free quota of this model | free tier of the model
        allowance for this model | inference limit for the & model""",
        never="per minute",
        scope="model",
    ),
    rule(
        "quota",
        says="""
        insufficient balance | insufficient credit | insufficient fund | insufficient account
        insufficient quota | insufficient account balance | balance is insufficient | balance is too low
        balance not enough | balance is not enough | not enough balance | not enough credit | negative balance
        zero balance | out of credit | run out of credit | no credits | credits remaining | any credits
        credit balance | credits expired | credits have been exhausted | credits exhausted
        used all available credits | used up & credits | more credits | add credits | purchase credits
        buy credits | exceeded your monthly included | credit limit | credits limit | depleted | spend limit
        spending limit | monthly limit | monthly usage limit | weekly usage limit | weekly limit
        usage limit reached | usage limit for | usage limit exceeded | hit your usage limit
        reached your usage limit | session usage limit | 5-hour & limit | 5 hour & limit
        daily free allocation
        reached your daily | reached your weekly | reached your monthly | daily message limit | daily request limit
        daily usage limit | daily token limit | daily allocation | daily quota | daily limit | monthly quota
        hard limit | over budget
        budget is exhausted | budget exhausted | monthly token limit | tokens used today | budget has been exceeded
        exceeded budget | exceeded & budget | budget exceeded
        current quota exceeded | quota exceeded & per day | quota has been reached | usage limit has been reached
        exceeds the service quota | package has expired | free-models-per-day | per 86400s | 预扣费额度
        not active, please check your billing | exceeded your current quota | exceeded current quota
        quota has been exhausted
        out of call volume quota | quota exhausted | quota is exhausted | quota is not enough
        quota exceeded & billing | free quota | free allocated quota | free tier & exhausted
        free trial & ended | trial & expired | payment required | payment method | past due | overdue | unpaid
        arrear | in good standing | billing issue | billing is not active | billing to be enabled
        key limit exceeded | tokens per day limit | too many tokens per day | per-day. | api calls / month
        valid credit card | tpd rate limit | usage limit for this period | free allocated quota exceeded
        使用上限 | 今日调用次数
        requires billing | billing is disabled | billing disabled | enable billing | active subscription
        subscription has expired
        subscription expired | top up | please recharge | insufficient_quota
        guthaben | kontingent & aufgebraucht | kontingent & ersch | saldo insuficiente | недостаточно средств
        残高が不足 | 残高不足
        crédits insuffisants | crédit insuffisant | créditos insuficientes
        余额不足 | 余额已 | 欠费 | 额度不足 | 额度已
        额度用 | 配额已 | 请充值 | 资源包 | 套餐已""",
        never="per minute | does not exist | invalid",
    ),
    rule(
        "permission_model",
        says="""
        not shared with the account | not shared with account | not shared with your | not been shared with
        missing resource entry | not in the allowlist | not in the allow list | not in the allow-list
        model & not allowed for & key
        sign in to use & model | signed in to use & model | sign in to access & model | sign up to use & model
        log in to use & model | logged in to use & model | login to use & model | login required & model""",
        never="does not exist or | not found, make",
    ),
    rule(
        "permission_model",
        says="""
        not authorized to access model | not authorized to access this model | not authorized to use model
        not authorized to use this model | not authorized to invoke this model | not authorized to call this model
        not allowed to access model | not allowed to access this model
        not allowed to use model | not allowed to call model | key not allowed & model
        team not allowed & model | user not allowed & model | can only access models | no access to model
        no longer available to new | marked by provider as legacy | no allowed providers
        is not allowed to use publisher model | not servable in region | model isn't on your plan
        plan not support model | 无权使用模型 | 订阅套餐暂未开放
        models is not allowed for this account | models are not allowed for this account
        access to model & restricted | model is not available in your region | model is not available in your country
        not serve your region | n't serve your region | model is not available in this region
        under your current plan | in the authorized list | no access to this model
        no permission to use the model | no permission to access model | permission to access model
        permission to use model | permission to use the model | access to model denied | access to model is
        access to this model | access to the model with the specified | model access denied
        model access is denied | model is blocked | model & is blocked at | models & blocked | model blocked
        request access & model | be verified to use the model | be verified to use this model
        be verified to stream | must be verified | plan does not include | plan doesn't include
        not included in your & plan | not included in current | of this policy | not available in your & plan
        not available on your & plan
        not available on the & plan | not available in the & plan | not available in your subscription
        subscription tier
        not available for your plan | not available on the free | model is only available
        has been disabled for | disabled for your | disabled by your | disabled for this
        not available to your
        not available for your | not available for this account | not available for this organization
        not available for this project | not available for this key | not supported for your account
        not available in your region | is not available in region | not activated the model
        model & not been activated | model & agree | agree to the & model | model & accept & terms
        accept the terms & model | is gated | gated repo | gated model | model use case details
        complete organization verification | requires a verified account | not allowed for this account
        not allowed for your account | requires a & plan & model
        requires a & tier & model | requiring a key to access this model | upgrade & to access & model
        upgrade & to use & model | require & subscription & model | requires a subscription
        model is not enabled for | not allowed to sample | model is disabled for | model is not allowed
        model not allowed | not approved for your | model is restricted | data policy | not have access to this model
        not have access to the model | not have access to model | does not have access to & model | 未开通 | 无权访问
        没有权限访问模型 | 实名认证 | 无权限使用 | 没有访问模型 | 套餐不包含""",
        never="does not exist or | not found, make | not found or | is not found for | currently loading",
    ),
    rule(
        "wrong_endpoint",
        says="""
        unsupported & compatibility mode | not supported & compatibility mode | not support & compatibility mode
        not supported & compatible mode | unsupported & compatible endpoint | unsupported & compatible api
        page could not be found | page you are looking for | page you requested
        unknown request url | invalid url | page not found | method not allowed | cannot post / | cannot get /
        no route matched | no matching route | route not found | unknown route | no static resource
        no handler found | no such endpoint | unknown endpoint | unexpected endpoint | endpoint not found
        unsupported endpoint | endpoint is not enabled | endpoint is disabled | endpoint not enabled
        check the url | requested url & not found | requested resource was not found
        not a chat model | not a completion model | not compatible with this engine | is not supported on this api
        please use the messages api | use the chat api instead | api was removed | api has been removed
        doesn't support the model that you | could not route to | no route for that uri
        did you mean to use v1/ | not supported in the v1/
        only supported in v1/ | only supported in the | supported by the responses api | use the responses api
        use v1/responses | via the /v1/ | does not work with the specified model
        not support & chat completion
        not support the chat | does not support chat | does not support generate | does not support completion
        does not support embedding | not support embeddings | not an embedding model
        not support the responses
        url error, please check | requires a newer version of | required url is missing | path not found
        not supported for this request
        not supported on /v1 | does not support & transcription | 调用方式 | operation requested is invalid
        model only supports & api | not supported for format | not available with the api version
        use a supported api version
        cannot be used with the & api | can only be used with the & api
        only available & completions api | only available & responses api
        not accessible via the | support endpoint | support this endpoint | support this api
        api version not supported | unsupported api version | configure ai gateway
        only for api versions | support the '/v1/ | support the /v1/ | support the v1/
        not supported by this endpoint | not supported on this endpoint | not supported for this endpoint
        not supported in this endpoint | not supported with this endpoint | not available on this endpoint
        not available for this endpoint | not available through this endpoint
        接口不存在 | 请求地址错误""",
    ),
    rule(
        "overloaded",
        says="""
        overloaded | over capacity | at capacity | capacity exceeded | capacity temporarily exceeded
        capacity constraint | out of capacity | no capacity | insufficient capacity | exceeded capacity
        too busy | server is busy | server busy | system is busy | service is busy | high traffic
        high demand
        high load | heavy load | heavy traffic | currently loading | is loading | model is starting
        model is cold | cold start | scaled to zero | scaling up | warming up | being warmed | starting up
        not ready | is not ready yet | initializing | no available worker | no upstream provider
        no auth available | no available account | no available & account | 无可用令牌
        no accounts available | no account available | 无可用账号 | failed to load model
        no deployments available for
        no provider available | no providers available | temporarily unable | no healthy upstream
        no instances
        no workers | request waiting timeout | queue full | queue is full | queue size | maximum pending requests
        temporarily unavailable | service unavailable | currently unavailable | service is unavailable
        is unavailable, try again | not available right now | not available at the moment | not loaded yet
        currently not available | temporarily not available | unavailable at the moment
        unavailable right now
        model busy | model is busy | busy, retry | not currently available | service is sleeping
        currently experiencing | degraded function
        engine is currently | unable to serve | no available capacity | more data centers to forward
        max capacity | maximum capacity | maintenance | taken offline for | überlastet | ausgelastet | surchargé
        sobrecargad | перегружен | 混雑
        混み合
        负载 | 访问量过大 | 繁忙 | 拥挤 | 资源不足 | 过载""",
        never="does not exist | api key | in this region | in your region | in your country",
    ),
    rule(
        "model_unavailable",
        says=f"{MISSING}"
        " | on-demand throughput isn't supported | support on-demand throughput"
        " | dedicated endpoint & not running | unable to access model & list of supported models",
    ),
    rule("model_unavailable", says=MODEL_ID, at=(400, 404, 422), weak=True),
    rule(
        "malformed_output",
        says="""
        failed to parse input at pos | error parsing tool call | no valid tool call or response
        but model called a tool | failed to generate json
        failed to call a function | tool call validation failed | failed_generation
        model produced invalid content | failed to parse tool call | invalid tool call generated
        could not parse & model's output | model did not output valid | model output & invalid
        unparsable & output""",
    ),
    rule(
        "rate_limited",
        says="""
        too many requests | rate limit | rate-limit | ratelimit | rate_limit | request was throttled | throttl
        exceeded the limit of requests | requests limit | slow down | zu viele anfragen | trop de requêtes
        demasiadas solicitudes
        слишком много запросов | リクエストが多すぎ | 频率 | 请求过多""",
        never="retry later if | per day | does not exist",
    ),
    rule(
        "timeout",
        says="""
        timed out | timeout | time out | is timing out | deadline expired | deadline exceeded | took too long
        超时""",
        never="""
        timeout must | invalid timeout | timeout is not | 'timeout' | timeout parameter | connect timeout""",
    ),
    rule(
        "auth",
        says="""
        invalid api key | invalid api-key | invalid_api_key | invalid apikey | incorrect api key
        wrong api key
        api key is invalid | api key & invalid | api key not valid | api key not found | api key expired
        api_key is not set | api key is not set | api key not set | api key is not configured | api key not configured
        api_key is not configured | api key is missing | api key is required | api key required
        api key has | api key was
        key has expired | key is expired | key is disabled | key has been | invalid x-api-key | invalid key
        invalid subscription key | missing api key | no api key | provide an api key | provide your api key
        provide a valid api | pass a valid api | must provide a valid | must provide your
        be a member of an organization | missing authentication | missing authorization | no authorization
        no auth credentials | no cookie auth | authentication fail | authentication error
        authentication required | authentication_error | authenticationerror | failed to authenticate
        could not authenticate | not authenticated | invalid auth | invalid bearer | invalid credential
        invalid token | invalid api token | invalid access token | invalid username or password
        token is invalid | token has expired | token is expired | token expired | expired token
        security token
        authentication token | authentication credential | signature we calculated | request signature
        login fail | user not found | account & suspended | account & deactivated | account & disabled
        account & restricted | account & terminated | account & banned | account & not active
        organization & disabled | organization & restricted | organization & suspended | consumer & suspended
        project & suspended | unsupported countries | unsupported country | not available in your country
        账户已被锁定 | 非活动状态 | service is unavailable in this region | service is not available in your region
        country is not supported | location is not supported | country, region, or territory
        country or region | due to expired timestamps | have permission to perform this action
        region is not supported | ip address & not | ip & whitelist | access terminated
        has not been used in project | api has not been | unauthenticated | incorrect api | missing scopes
        insufficient permission | valid credentials | authorization header
        ungültiger api | ungültiger schlüssel | clé api invalide | clé d'api invalide | clave de api no válida
        chave de api inválida | неверный api | недействительный api | apiキーが無効 | apiキーが正しく
        令牌 | 身份验证 | 鉴权 | 密钥 | 认证失败""",
        never="does not exist | unknown model",
    ),
    rule(
        # Under a 401 or 403 it is the credential or a permission that is required.
        "bad_request",
        says="is a required property | field required | is required",
        at=(200, 400, 404, 406, 409, 413, 415, 422, 500),
    ),
    rule(
        "bad_request",
        says="""
        is not supported with this model | not supported for this model | not supported on this model
        not supported by this model | is not a multimodal model | does not support tool
        does not support function | does not support thinking | does not support image
        does not support vision
        does not support stream | does not support parameter | does not support | doesn't support
        input is not supported | unsupported parameter | unsupported value | unrecognized request argument
        extra inputs are not permitted
        missing required | [invalid_request_error] | validation error | invalid request | invalid parameter
        invalid json | decode json
        parse json | json parse | end of json input | not valid json | invalid value | unknown field
        unknown parameter | must be one of | must be greater | must be less | expected & but got
        could not parse the json | json parse error | 参数错误 | 参数非法 | 参数有误 | 参数不合法""",
        never="unable to reach",
    ),
    rule(
        # Words of a relay that say nothing about whose fault it was: under a 4xx the status knows better.
        "server_error",
        says="something went wrong | upstream error | upstream request failed",
        at=(200, 424, 500, 502, 503, 504, 520, 529),
        weak=True,
    ),
    rule(
        "server_error",
        says="""
        internal server error | internal error | internal_error | server had an error | server error
        unexpected error | error was encountered while running the model | agents are being provisioned
        prediction interrupted
        bad gateway | connection error | connection refused | connection reset
        unexpectedly stopped | model has crashed | model crashed | out of memory | cuda | no response from
        内部错误 | 服务异常 | 系统异常 | 服务器错误""",
        weak=True,
    ),
)
