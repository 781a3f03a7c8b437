__hx_t=
trap() {
	# A subshell's traps are its own; the shell's EXIT trap is kept aside, for the state is written after it.
	[[ ${BASHPID:-$$} == "$$" && $BASH_SUBSHELL == 0 ]] || { builtin trap "$@"; return; }
	local action=- rest=() mine= sig
	case ${1-} in
	'' | -p) if (($# == 0)) || [[ $1 == -p ]]; then __hx_show "${@:2}"; return; fi ;;
	-l | -P) builtin trap "$@"; return ;;
	esac
	[[ $1 == -- ]] && shift
	if (($# > 1)) && ! [[ $1 =~ ^[0-9]+$ ]]; then action=$1; shift; fi
	for sig; do
		case $sig in
		0 | [Ee][Xx][Ii][Tt]) mine=1 ;;
		*) rest+=("$sig") ;;
		esac
	done
	if [[ $mine ]]; then
		case $action in
		-) __hx_t= ;;
		*) __hx_t=$action ;;
		esac
	fi
	((${#rest[@]} == 0)) || builtin trap -- "$action" "${rest[@]}"
}
__hx_show() {
	local sig q="'\\''" all=() mine=1
	if (($#)); then
		mine=
		for sig; do
			case $sig in
			0 | [Ee][Xx][Ii][Tt]) mine=1 ;;
			*) all+=("$sig") ;;
			esac
		done
	else
		all=({1..31} DEBUG ERR RETURN)
	fi
	if [[ $mine && $__hx_t ]]; then builtin printf "trap -- '%s' EXIT\n" "${__hx_t//\'/$q}"; fi
	((${#all[@]} == 0)) || builtin trap -p "${all[@]}"
}
__hx_s='builtin unset -f trap __hx_show __hx_q
{
	builtin printf "\0["
	builtin pwd
	builtin printf "\0%s\0" "$__hx_f"
	builtin umask
	builtin printf "\0"
	builtin declare -p
	builtin printf "\0"
	builtin alias -p
	builtin printf "\0"
	builtin declare -f
	builtin declare -Fx
	builtin printf "\0]"
} >&62'
builtin trap '{
	__hx_r=$? __hx_f=$-
	\builtin set +euvx
	\builtin trap - DEBUG ERR RETURN
	\builtin eval "$__hx_s"
	if [[ $__hx_t ]]; then
		__hx_q() { return "$__hx_r"; }
		__hx_q
		\builtin eval "$__hx_t" >&60 2>&61 60>&- 61>&-
		\builtin eval "$__hx_s"
	fi
} 60>&1 61>&2 >/dev/null 2>&1' EXIT
