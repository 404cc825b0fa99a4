# Sourced by the scripts that ask a server of the small model, in the repository's folder. Not run by itself.
#   prepare_serving HEADRACE   sets program, model and root: a folder that the script's end removes, with a key
#   start_server FLAG...       starts a server with its log in $root/log, and sets server and address
#   stop_server NAME           ends it; fails if its status is not 0. NAME: the script's

server=

prepare_serving() {
  bash tests/install.sh model
  program=$(realpath "$1")
  model=$(bash tests/fetch_model.sh)
  root=$(mktemp -d)
  trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$root"' EXIT
  echo sesame >"$root/keys"
}

start_server() {
  "$program" serve -m "$model" -c 4096 --port 0 --queue 8 --api-key-file "$root/keys" "$@" 2>"$root/log" &
  server=$!
  local waits=1200  # tenths of a second
  until grep -q '^listening on ' "$root/log"; do
    if ! kill -0 "$server" 2>/dev/null || [ $((waits -= 1)) -le 0 ]; then
      echo "no server is listening" >&2
      cat "$root/log" >&2
      exit 1
    fi
    sleep 0.1
  done
  address=$(sed -n 's/^listening on //p' "$root/log")
}

stop_server() {
  kill -TERM "$server"
  local status=0
  wait "$server" || status=$?
  server=
  [ "$status" -eq 0 ] || { echo "$1: the server ended with status $status" >&2; exit 1; }
}
