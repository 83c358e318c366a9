"""Authentication and authorisation: credentials to principals, principals to permissions. Knows no web framework."""

from perdure.core.access import namespace_of
from perdure.server.auth.authenticator import Authenticator, OpenAccess
from perdure.server.auth.oidc import OidcSettings
from perdure.server.auth.sign_in import OidcSignIn
from perdure.server.auth.tokens import Tokens
from perdure.server.auth.web_sessions import WebSessions

__all__ = ["Authenticator", "OidcSettings", "OidcSignIn", "OpenAccess", "Tokens", "WebSessions", "namespace_of"]
