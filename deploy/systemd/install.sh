#!/bin/sh
# Installs what the services named need on this machine, as root; run it on each machine, with what runs there:
#   sh install.sh nats guard triage billing technical
# It starts nothing, and leaves an existing mesh.env as it is. DESTDIR is a folder to install into instead of /.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
root=${DESTDIR:-}
etc=$root/etc/handoff-mesh
nats=$root/etc/handoff-mesh-nats
units=$root/etc/systemd/system
tls=

for name in "$@"; do
  case $name in
    nats|guard|triage|billing|technical) ;;
    *) echo "install.sh: $name is not of this deployment: nats guard triage billing technical" >&2; exit 2 ;;
  esac
done

# systemd reads it as root; an agent's .env may hold a model's key.
install -d -m 0700 "$etc" "$etc/keys" "$etc/tls"
install -d -m 0755 "$units"
[ -e "$etc/mesh.env" ] || install -m 0600 "$here/mesh.env" "$etc/mesh.env"
if [ -n "$tls" ]; then
  install -m 0644 "$here/../tls/ca.pem" "$here/../tls/client.pem" "$etc/tls/"
  install -m 0600 "$here/../tls/client-key.pem" "$etc/tls/"
fi

for name in "$@"; do
  case $name in
    nats)
      install -d -m 0755 "$nats" "$nats/tls" # the server reads it as a user of its own; it holds no secret
      install -m 0644 "$here/$name.conf" "$here/../accounts.conf" "$nats/"
      install -m 0644 "$here/mesh-nats@.service" "$units/"
      if [ -n "$tls" ]; then
        install -m 0644 "$here/../tls/ca.pem" "$here/../tls/$name.pem" "$nats/tls/"
        install -m 0600 "$here/../tls/$name-key.pem" "$etc/tls/"
      fi ;;
    guard)
      install -m 0600 "$here/../keys/guard.nk" "$etc/keys/"
      install -m 0644 "$here/mesh-guard.service" "$units/" ;;
    *)
      # Who shares what agents have in common. A name that is taken is no error.
      groupadd --force --system mesh-data
      install -d -m 2770 -g mesh-data "$root/var/lib/mesh-data"
      install -m 0600 "$here/../keys/$name.nk" "$etc/keys/"
      install -m 0644 "$here/mesh-agent@.service" "$units/"
      install -d -m 0755 "$units/mesh-agent@$name.service.d"
      install -m 0644 "$here/mesh-agent@$name.service.d/agent.conf" "$units/mesh-agent@$name.service.d/" ;;
  esac
done
