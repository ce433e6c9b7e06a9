"""What the `acl` commands ask a broker, in their own words: requests and answers of kio stay in here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kio.schema.create_acls.v2.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v2.response import CreateAclsResponse
from kio.schema.delete_acls.v2.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v2.response import DeleteAclsResponse
from kio.schema.describe_acls.v2.request import DescribeAclsRequest
from kio.schema.describe_acls.v2.response import DescribeAclsResponse
from kio.static.primitive import i8

from fairlog.cli.client import Connection, check
from fairlog.cli.errors import ClientError
from fairlog.security.acls import Acl, AclFilter, BadAcl, acl_untrusted


def create_acls(connection: Connection, acls: Sequence[Acl]) -> None:
    """Add these ACLs; those that exist stay."""
    creations = tuple(
        AclCreation(
            resource_type=i8(acl.resource_type),
            resource_name=acl.resource_name,
            resource_pattern_type=i8(acl.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=i8(acl.operation),
            permission_type=i8(acl.permission),
        )
        for acl in acls
    )
    answer = connection.request(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for acl, result in zip(acls, answer.results, strict=True):
        what = f"{acl.permission.name} {acl.operation.name} on {acl.resource_type.name} {acl.resource_name}"
        check(f"adding {what} for {acl.principal}", result.error_code, result.error_message)


def describe_acls(connection: Connection, wanted: Iterable[AclFilter]) -> list[Acl]:
    """All ACLs that one of the filters matches, each once."""
    found: dict[Acl, None] = {}
    for each in wanted:
        request = DescribeAclsRequest(
            resource_type_filter=i8(each.resource_type),
            resource_name_filter=each.resource_name,
            pattern_type_filter=i8(each.pattern_type),
            principal_filter=each.principal,
            host_filter=each.host,
            operation=i8(each.operation),
            permission_type=i8(each.permission),
        )
        answer = connection.request(request, DescribeAclsResponse)
        check("asking for ACLs", answer.error_code, answer.error_message)
        for resource in answer.resources:
            for acl in resource.acls:
                one = _acl(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
                found[one] = None
    return list(found)


def delete_acls(connection: Connection, wanted: Iterable[AclFilter]) -> list[Acl]:
    """Delete all ACLs that one of the filters matches; those that were deleted."""
    filters = tuple(
        DeleteAclsFilter(
            resource_type_filter=i8(each.resource_type),
            resource_name_filter=each.resource_name,
            pattern_type_filter=i8(each.pattern_type),
            principal_filter=each.principal,
            host_filter=each.host,
            operation=i8(each.operation),
            permission_type=i8(each.permission),
        )
        for each in wanted
    )
    deleted: dict[Acl, None] = {}
    for result in connection.request(DeleteAclsRequest(filters=filters), DeleteAclsResponse).filter_results:
        check("removing ACLs", result.error_code, result.error_message)
        for acl in result.matching_acls:
            check("removing an ACL", acl.error_code, acl.error_message)
            one = _acl(
                acl.resource_type,
                acl.resource_name,
                acl.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            deleted[one] = None
    return list(deleted)


def _acl(
    resource_type: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> Acl:
    try:
        return acl_untrusted(resource_type, name, pattern, principal, host, operation, permission)
    except BadAcl as bad:  # of a broker that has others
        raise ClientError(f"the broker has an ACL on {name!r} that this program does not know: {bad}") from bad
