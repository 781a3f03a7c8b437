__hx_t= __hx_x='{ __hx_exit; } >/dev/null 2>&1' __hx_s=
trap() {
	# set -x shows the call, and no more.
	{ local - && set +x; } 2>/dev/null
	__hx_trap "$@"
}
__hx_trap() {
	# A subshell's traps are its own. The state is written around the tenant's EXIT trap, so it comes into ours.
	[[ ${BASHPID:-$$} == "$$" && $BASH_SUBSHELL == 0 ]] || { builtin trap "$@"; return; }
	local __hx_a=- __hx_d=() __hx_m= __hx_g
	case ${1-} in
	'' | -p) if (($# == 0)) || [[ $1 == -p ]]; then __hx_show "${@:2}"; return; fi ;;
	-l | -P) builtin trap "$@"; return ;;
	esac
	[[ $1 == -- ]] && shift
	if (($# > 1)) && ! [[ $1 =~ ^[0-9]+$ ]]; then __hx_a=$1; shift; fi
	for __hx_g; do
		case $__hx_g in
		0 | [Ee][Xx][Ii][Tt]) __hx_m=1 ;;
		*) __hx_d+=("$__hx_g") ;;
		esac
	done
	if [[ $__hx_m ]]; then
		__hx_t=${__hx_a#-}
		if [[ $__hx_t ]]; then
			# So that set -e does not end it, the status stays, and set -x shows nothing.
			builtin trap -- "$__hx_x && __hx_q() { :; }; $__hx_t"$'\n{ __hx_again; } >/dev/null 2>&1' EXIT
		else
			builtin trap -- "$__hx_x" EXIT
		fi
	fi
	((${#__hx_d[@]} == 0)) || builtin trap -- "$__hx_a" "${__hx_d[@]}"
}
__hx_show() {
	local __hx_g __hx_k="'\\''" __hx_d=() __hx_m=1
	if (($#)); then
		__hx_m=
		for __hx_g; do
			case $__hx_g in
			0 | [Ee][Xx][Ii][Tt]) __hx_m=1 ;;
			*) __hx_d+=("$__hx_g") ;;
			esac
		done
	else
		__hx_d=({1..31} DEBUG ERR RETURN)
	fi
	if [[ $__hx_m && $__hx_t ]]; then builtin printf "trap -- '%s' EXIT\n" "${__hx_t//\'/$__hx_k}"; fi
	((${#__hx_d[@]} == 0)) || builtin trap -p "${__hx_d[@]}"
}
# A shell that is ended inside of functions still has their variables, which hide those of the same name. An attribute
# that the global one is given shows only where nothing hides it. What can be taken away is, unless the tenant's trap is
# still to see it; the names of the others are told. A reference does not show an attribute of its own.
__hx_locals() {
	local __hx_n __hx_a= __hx_e
	__hx_h=
	for __hx_n in "${FUNCNAME[@]}"; do
		[[ $__hx_n == __hx_* || $__hx_n == main || $__hx_n == source ]] || __hx_a=inside
	done
	[[ $__hx_a ]] && ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)) || return 0
	__hx_e=("${!_@}" "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" "${!h@}" "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" \
		"${!n@}" "${!o@}" "${!p@}" "${!q@}" "${!r@}" "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}" "${!A@}" \
		"${!B@}" "${!C@}" "${!D@}" "${!E@}" "${!F@}" "${!G@}" "${!H@}" "${!I@}" "${!J@}" "${!K@}" "${!L@}" "${!M@}" "${!N@}" "${!O@}" \
		"${!P@}" "${!Q@}" "${!R@}" "${!S@}" "${!T@}" "${!U@}" "${!V@}" "${!W@}" "${!X@}" "${!Y@}" "${!Z@}")
	# With many the time grows with their square.
	((${#__hx_e[@]} <= 1000)) || return 0
	for __hx_n in "${__hx_e[@]}"; do
		[[ $__hx_n != __hx_* ]] || continue
		for __hx_i in 1 2 3 4 5 6 7 8 9; do
			[[ ! -R $__hx_n ]] || break
			\builtin declare -gt "$__hx_n"
			__hx_a=${!__hx_n@a}
			\builtin declare -g +t "$__hx_n"
			[[ $__hx_a != *t* ]] || continue 2
			[[ ! $__hx_t ]] && \builtin unset -v "$__hx_n" || break
		done
		__hx_h+=" $__hx_n"
	done
	[[ $__hx_p ]]
}
# The record is only whole when each of these commands did its work.
__hx_save() {
	__hx_p=
	{
		\builtin printf -v __hx_p %s works && [[ $__hx_p ]] && __hx_locals &&
			\builtin printf '\0[\0' && \builtin pwd &&
			\builtin printf '\0%s' "$__hx_l" "$__hx_f" "$__hx_o" "$__hx_b" '' && \builtin umask &&
			\builtin printf '\0' && \builtin declare -p &&
			\builtin printf '\0' && \builtin alias -p &&
			# Nothing of ours is kept but what the tenant's trap still needs; what runs goes on.
			{ [[ $__hx_t ]] || \builtin unset -f __hx_again __hx_bare __hx_exit __hx_locals __hx_save __hx_show __hx_trap || :; } &&
			\builtin printf '\0' && \builtin declare -f &&
			\builtin printf '\0' && \builtin declare -Fx &&
			\builtin printf '\0%s\n' "$__hx_s" &&
			{ \builtin declare -f alias builtin declare enable printf pwd set shopt umask || [[ $__hx_p ]]; } &&
			\builtin printf '\0%s\0]' "$__hx_h"
	} >"$__hx_w"
}
# In a subshell: where the tenant's own functions stand before the builtins, or these are switched off. Of builtins only
# the special ones, in POSIX mode, come before functions; of those that are in the way, exporting prints the text.
__hx_bare() {
	POSIXLY_CORRECT=y
	\set +euvx
	for __hx_p in alias builtin declare enable printf pwd set shopt umask; do
		\export -f "$__hx_p"
	done
	__hx_s=$(\unset -f export; \unset POSIXLY_CORRECT; \export -pf)
	\unset -f alias builtin declare enable printf pwd set shopt umask
	\unset POSIXLY_CORRECT
	\enable alias builtin declare printf pwd umask
}
__hx_exit() {
	__hx_r=$? __hx_f=$- __hx_o=$SHELLOPTS __hx_b=$BASHOPTS
	\builtin set +euvx || :
	\builtin trap - DEBUG ERR RETURN || :
	# GLOBIGNORE switches it, and BASHOPTS does not tell.
	[[ ${GLOBIGNORE-} || $__hx_b == *dotglob* ]] && { \builtin shopt -q dotglob && __hx_b+=:dotglob || __hx_b=${__hx_b/dotglob/}; }
	__hx_save || (__hx_bare; __hx_save) || :
	if [[ $__hx_t ]]; then
		[[ $__hx_f != *e* ]] || \builtin set -e
		[[ $__hx_f != *u* ]] || \builtin set -u
		[[ $__hx_f != *x* ]] || \builtin set -x
		return "$__hx_r"
	fi
}
__hx_again() {
	\builtin set +euvx || :
	__hx_save || (__hx_bare; __hx_save)
}
builtin trap -- "$__hx_x" EXIT
